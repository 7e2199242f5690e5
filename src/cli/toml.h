#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace annulus {

// Holds an entry in a flat TOML file, key = value. Values are stored as text: numbers in the shortest form that reads
// back the same, booleans as true and false.
struct TomlEntry {
  enum class Type { truth, number, text };

  std::string key;
  std::size_t line;
  Type type;
  bool is_array;                    // with values in a single type
  std::vector<std::string> values;  // a single value, unless an array
};

// Returns the entries in line order. `file`: the file's name, for errors. Throws Error "FILE:LINE: ..." if the text is
// not TOML, or has tables, dates or mixed or nested arrays.
std::vector<TomlEntry> read_toml(std::istream& stream, const std::string& file);

// Returns a text as a single-line TOML string.
std::string toml_string(const std::string& text);

}  // namespace annulus
