#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace annulus {

// The files that commands write at a user's request. A JSON report has its kind's name in the field "kind".
enum class FileKind {
  data,
  onnx,
  timeline,
  predictions,
  skipped_samples,
  average,  // of checkpoints
  run_results,
  evaluation,
  checkpoint_description,
  model_list,
  step_benchmark,
  all_reduce_benchmark,
  input_benchmark,
  noise_benchmark,
  scaling_prediction,
};
std::string_view name(FileKind kind);

// A file to write; none if its name is empty.
struct Output {
  std::filesystem::path file;
  FileKind kind;
};

// The rule for every file that a command writes, to be checked before its work begins. Throws Error unless the file is
// new and its folder can be written to, or it may be replaced: it is a regular file that this command does not read
// (`inputs`, of which a folder stands for all files below it), and either it is empty, or recognized by its content as
// an earlier one of the same kind, or `overwrite` is set. Checkpoints are never recognized: a run's state may be its
// only copy.
void expect_replaceable(const Output& output, const std::vector<std::filesystem::path>& inputs, bool overwrite);

// What a timeline begins with, by which it is recognized: an event that viewers ignore.
inline constexpr std::string_view kTimelineMark = R"({"name":"annulus timeline","ph":"M","pid":0,"args":{}})";

}  // namespace annulus
