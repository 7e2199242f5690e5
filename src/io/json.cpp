#include "src/io/json.h"

#include <fmt/format.h>

#include <iterator>
#include <string>

namespace annulus {
namespace {

using nlohmann::json;

constexpr int kParseError = 101;  // the library's number for it

// Counts open brackets outside strings, also in text that is not JSON.
void expect_shallow(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
      continue;
    }
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if ((c == '[' || c == '{') && ++depth > kDeepestJson)
      throw json::parse_error::create(
          kParseError, i + 1, fmt::format("nested more deeply than the supported {} levels", kDeepestJson), nullptr);
  }
}

std::string rest_of(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

json parse_json(std::string_view text, const json::parser_callback_t& callback) {
  expect_shallow(text);
  return json::parse(text, callback);
}

json parse_json(std::istream& stream) {
  return parse_json(rest_of(stream));
}

json try_parse_json(std::string_view text) try {
  expect_shallow(text);
  return json::parse(text, nullptr, false);
} catch (const json::parse_error&) {
  return json::value_t::discarded;
}

json try_parse_json(std::istream& stream) {
  return try_parse_json(rest_of(stream));
}

}  // namespace annulus
