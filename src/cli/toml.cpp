#include "src/cli/toml.h"

#include <toml++/toml.h>
#include <algorithm>
#include <istream>
#include <iterator>
#include <sstream>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Limits: larger files are not configurations, and the library uses stack for each nesting level.
constexpr std::size_t kMostBytes = 1 << 16, kMostDots = 64;

std::string read_all(std::istream& stream, const std::string& file) {
  std::string text;
  char piece[4096];
  while (text.size() <= kMostBytes && (stream.read(piece, sizeof piece), stream.gcount() > 0))
    text.append(piece, static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMostBytes) fail("{}: larger than {} bytes, the limit for a configuration", file, kMostBytes);
  return text;
}

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  TomlEntry read(const std::string& key, const toml::node& node) const {
    TomlEntry entry{key, node.source().begin.line, TomlEntry::Type::text, node.is_array(), {}};
    if (!node.is_array()) {
      add(entry, node);
    } else {
      if (!node.as_array()->is_homogeneous()) refuse(entry, "holds values of several types, or none");
      for (const toml::node& element : *node.as_array()) add(entry, element);
    }
    return entry;
  }

 private:
  void add(TomlEntry& entry, const toml::node& node) const {
    if (const auto* truth = node.as_boolean()) {
      entry.type = TomlEntry::Type::truth;
      entry.values.emplace_back(truth->get() ? "true" : "false");
    } else if (const auto* integer = node.as_integer()) {
      entry.type = TomlEntry::Type::number;
      entry.values.push_back(fmt::format("{}", integer->get()));
    } else if (const auto* number = node.as_floating_point()) {
      entry.type = TomlEntry::Type::number;
      entry.values.push_back(fmt::format("{}", number->get()));
    } else if (const auto* text = node.as_string()) {
      entry.values.push_back(text->get());
    } else {
      refuse(entry, "is neither a number, a text, true or false, nor a list of them; a configuration is flat");
    }
  }

  [[noreturn]] void refuse(const TomlEntry& entry, const char* reason) const {
    fail("{}:{}: {} {}", file_, entry.line, entry.key.substr(0, 60), reason);
  }

  const std::string& file_;
};

// Counts dots outside quotes before the equals sign.
std::size_t dots_in_key(const std::string& line) {
  std::size_t dots = 0;
  char quote = 0;
  for (std::size_t i = 0; i < line.size() && (quote != 0 || line[i] != '='); ++i) {
    if (quote == '"' && line[i] == '\\')
      ++i;
    else if (line[i] == quote)
      quote = 0;
    else if (quote == 0 && (line[i] == '"' || line[i] == '\''))
      quote = line[i];
    else if (quote == 0 && line[i] == '.')
      ++dots;
  }
  return dots;
}

// Refuses keys with too many parts, a.b.c, which the library parses as nested tables.
void expect_flat(const std::string& text, const std::string& file) {
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (dots_in_key(line) > kMostDots)
      fail("{}:{}: a key of more than {} parts; a configuration is flat", file, number, kMostDots);
  }
}

}  // namespace

std::vector<TomlEntry> read_toml(std::istream& stream, const std::string& file) try {
  const std::string text = read_all(stream, file);
  expect_flat(text, file);
  const toml::table table = toml::parse(text, file);
  const Reader reader(file);
  std::vector<TomlEntry> entries;
  for (const auto& [key, node] : table) entries.push_back(reader.read(std::string(key.str()), node));
  std::ranges::sort(entries, {}, &TomlEntry::line);
  return entries;
} catch (const toml::parse_error& error) {
  fail("{}:{}: {}", file, error.source().begin.line, error.description());
}

std::string toml_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace annulus
