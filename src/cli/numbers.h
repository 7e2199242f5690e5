#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace annulus {

// The numbers that options take: decimal, finite and in a range. A sign, trailing text, NaN, infinity and what does not
// fit are refused in a short message, such as: expected a number > 0, not "fast". To be added by ->transform(), as the
// option's conversion would take 010 for octal.

constexpr std::uint64_t kMostCount = 1'000'000'000'000;  // of anything

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most = kMostCount);

constexpr double kLargestNumber = std::numeric_limits<float>::max();  // some are stored as such

CLI::Validator number_above(double bound);
CLI::Validator number_from(double least, double most = kLargestNumber);
CLI::Validator any_number();  // finite, of either sign

// Sizes in bytes, such as 4096, 64KiB (65,536) or 64KB (64,000).
CLI::Validator byte_size(std::uint64_t least, std::uint64_t most);

// For an option that is parsed by a function: the number, or CLI::ValidationError.
double parse_number(const std::string& option, std::string text, const CLI::Validator& validator);

// A text in a message: in quotes, not long, nothing but printable.
std::string in_quotes(const std::string& text);

}  // namespace annulus
