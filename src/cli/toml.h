#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace annulus {

// A value of a flat TOML file, key = value. Values are as text: numbers in their shortest form that reads back the
// same, truth values as true and false.
struct TomlEntry {
  enum class Type { truth, number, text };

  std::string key;
  std::size_t line;
  Type type;
  bool is_array;                    // of values of one type
  std::vector<std::string> values;  // one, unless it is an array
};

// In the order of their lines. `file`: its name, for errors. Throws Error "FILE:LINE: ..." if the text is no TOML, or
// holds tables, dates or mixed or nested arrays.
std::vector<TomlEntry> read_toml(std::istream& stream, const std::string& file);

// A string in TOML's notation, within one line.
std::string toml_string(const std::string& text);

}  // namespace annulus
