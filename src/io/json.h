#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace annulus {

// Reads JSON from files. The library has no nesting limit, and overflows the stack when it destroys, copies or compares
// a deeply nested value; tests/include_rule.py rejects other calls to the library's parser.
constexpr std::size_t kDeepestJson = 64;

// Throws nlohmann::json::exception if the text is not JSON, or is nested more deeply than kDeepestJson levels.
// `callback`: as the library's, to inspect what is parsed.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& callback = nullptr);
nlohmann::json parse_json(std::istream& stream);  // all remaining text

// Returns a discarded value, which is not an object or anything else, if parse_json() would throw.
nlohmann::json try_parse_json(std::string_view text);
nlohmann::json try_parse_json(std::istream& stream);

// Returns a member, or `fallback` if there is none or its type differs: a file may have been edited.
template <typename Value>
Value member_or(const nlohmann::json& object, const char* key, const Value& fallback) try {
  return object.value(key, fallback);
} catch (const nlohmann::json::type_error&) {
  return fallback;
}

}  // namespace annulus
