#include "src/cli/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "src/io/bytes.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

template <class T>
std::optional<T> parse_all(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}

// Returns a validator for a range. `holds`: whether a number is in the range; `expected` describes the range.
template <class Holds>
CLI::Validator number(const std::string& expected, Holds holds) {
  const auto check = [expected, holds](std::string& text) {
    const auto value = parse_all<double>(text);
    // The option may be stored in single precision, and must not become 0 or infinite there.
    const bool is_good = value && std::isfinite(*value) && holds(*value) && holds(static_cast<float>(*value)) &&
                         std::isfinite(static_cast<float>(*value));
    if (!is_good) return unexpected(expected, text);
    text = fmt::format("{}", *value);  // valid TOML, which .5 is not
    return std::string();
  };
  return {check, ""};
}

}  // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](std::string& text) {
    const auto value = parse_all<std::uint64_t>(text);
    if (!value || *value < least || *value > most)
      return unexpected(most >= kMostCount ? fmt::format("a whole number >= {}", least)
                                           : fmt::format("a whole number from {} to {}", least, most),
                        text);
    text = std::to_string(*value);
    return std::string();
  };
  return {check, ""};
}

CLI::Validator number_above(double bound) {
  return number(fmt::format("a number > {}", bound), [bound](double value) { return value > bound; });
}

CLI::Validator number_from(double least, double most) {
  return number(most >= kLargestNumber ? fmt::format("a number >= {}", least)
                                       : fmt::format("a number from {} to {}", least, most),
                [least, most](double value) { return value >= least && value <= most; });
}

CLI::Validator any_number() {
  return number("a number", [](double) { return true; });
}

CLI::Validator byte_size(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](std::string& text) {
    static const CLI::AsSizeValue to_bytes(true);
    std::string bytes = text;
    try {
      if (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0) to_bytes(bytes);
    } catch (const CLI::ParseError&) {
      bytes.clear();
    }
    const auto value = parse_all<std::uint64_t>(bytes);
    if (!value || *value < least || *value > most)
      return unexpected(fmt::format("a size from {} to {}, such as 1MiB", format_bytes(least), format_bytes(most)),
                        text);
    text = bytes;
    return std::string();
  };
  return {check, "", ""};
}

std::vector<std::size_t> parse_sizes(const std::string& option, const std::vector<std::string>& entries,
                                     const CLI::Validator& size) {
  const auto parse = [&](const std::string& text, const CLI::Validator& validator) {
    return static_cast<std::size_t>(parse_number(option, text, validator));
  };
  std::vector<std::size_t> sizes;
  for (const std::string& entry : entries) {
    const std::vector<std::string> parts = CLI::detail::split(entry, ':');
    const bool is_range = parts.size() == 3;
    const std::size_t from = parse(is_range ? parts[0] : entry, size), to = is_range ? parse(parts[1], size) : from;
    const std::size_t factor = parse(is_range ? parts[2] : "2", whole_number(2, 1024));
    if (from > to) throw CLI::ValidationError(option, fmt::format("{} is empty", in_quotes(entry)));
    for (std::size_t bytes = from; bytes <= to; bytes *= factor) sizes.push_back(bytes);
  }
  return sizes;
}

std::vector<std::size_t> parse_image(const std::string& text, std::uint64_t most) {
  const std::vector<std::string> parts = CLI::detail::split(text + 'x', 'x');  // it drops an empty last part
  std::vector<std::size_t> image;
  for (std::string part : parts)
    if (whole_number(1, most)(part).empty()) image.push_back(std::stoull(part));
  if (image.empty() || image.size() != parts.size() || image.size() > 3)
    throw CLI::ValidationError("--image", unexpected("a size such as 224, 224x160 or 224x160x3", text));
  if (image.size() == 1) image.push_back(image.front());
  image.resize(3);
  return image;
}

double parse_number(const std::string& option, std::string text, const CLI::Validator& validator) {
  if (const std::string complaint = validator(text); !complaint.empty()) throw CLI::ValidationError(option, complaint);
  return *parse_all<double>(text);
}

std::string in_quotes(const std::string& text) {
  constexpr std::size_t kMost = 40;
  return fmt::format("\"{}\"", printable(text.size() > kMost ? text.substr(0, kMost) + "..." : text));
}

std::string unexpected(const std::string& expected, const std::string& text) {
  return fmt::format("expected {}, not {}", expected, in_quotes(text));
}

}  // namespace annulus
