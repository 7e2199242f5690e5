#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace annulus {

// Returns a text with the candidate that an unknown word probably means: "; did you mean --batch?", with `prefix`
// before it. Empty if no candidate is similar.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates, const char* prefix = "");

// Returns a validator that accepts `choices` only. The message: expected cpu or cuda, not "cdua"; did you mean cuda?
CLI::Validator one_of(std::vector<std::string> choices);

std::vector<std::string> model_names();

// Returns a validator that accepts a model's name or an ONNX file.
CLI::Validator network();

}  // namespace annulus
