#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace annulus {

// An entry of a flat TOML file, key = value. Values are stored as text: numbers in their shortest form that reads back
// the same, booleans as true and false.
struct TomlEntry {
  enum class Type { truth, number, text };

  std::string key;
  std::size_t line;
  Type type;
  bool is_array;                    // of values of one type
  std::vector<std::string> values;  // one, unless it is an array
};

// Returns the entries in the order of their lines. `file`: its name, for errors. Throws Error "FILE:LINE: ..." if the
// text is not TOML, or has tables, dates or mixed or nested arrays.
std::vector<TomlEntry> read_toml(std::istream& stream, const std::string& file);

// Returns a text as a TOML string on one line.
std::string toml_string(const std::string& text);

}  // namespace annulus
