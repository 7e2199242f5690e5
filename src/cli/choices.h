#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace annulus {

// Returns the candidate that is probably meant by an unknown word, with a prefix: "; did you mean --batch?". Returns an
// empty text if none is similar.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates, const char* prefix = "");

// A validator for an option whose value is one of `choices`. Its message: expected cpu or cuda, not "cdua"; did you
// mean cuda?
CLI::Validator one_of(std::vector<std::string> choices);

std::vector<std::string> model_names();

// A name of the zoo, or an ONNX file.
CLI::Validator network();

}  // namespace annulus
