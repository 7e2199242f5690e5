#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace annulus {

// Validators for numeric options: decimal, finite and in a range. They reject signs, trailing text, NaN, infinity and
// out-of-range values with a short message, such as: expected a number > 0, not "fast". Add them with ->transform(),
// because the option's own conversion would parse 010 as octal.

constexpr std::uint64_t kMostCount = 1'000'000'000'000;  // for any count

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most = kMostCount);

constexpr double kLargestNumber = std::numeric_limits<float>::max();  // some are stored as float

CLI::Validator number_above(double bound);
CLI::Validator number_from(double least, double most = kLargestNumber);
CLI::Validator any_number();  // finite, of either sign

// Accepts sizes in bytes, such as 4096, 64KiB (65,536) or 64KB (64,000).
CLI::Validator byte_size(std::uint64_t least, std::uint64_t most);

// Parses a list's entries: a size as above, or FROM:TO:FACTOR, such as 8:64MiB:2: every size from 8 bytes to 64 MiB
// that is a power of 2 times 8. Throws CLI::ValidationError.
std::vector<std::size_t> parse_sizes(const std::string& option, const std::vector<std::string>& entries,
                                     const CLI::Validator& size);

// Parses an image's size: 224 (square), 224x160, or with channels 224x160x3. Returns height, width and channels; 0
// channels if they are not given. `most`: for each. Throws CLI::ValidationError.
std::vector<std::size_t> parse_image(const std::string& text, std::uint64_t most);

// Parses a number for an option that a function parses. Returns the number or throws CLI::ValidationError.
double parse_number(const std::string& option, std::string text, const CLI::Validator& validator);

// Quotes a text for a message: shortened, printable characters only.
std::string in_quotes(const std::string& text);

// Returns the message: expected cpu or cuda, not "cdua".
std::string unexpected(const std::string& expected, const std::string& text);

}  // namespace annulus
