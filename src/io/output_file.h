#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace annulus {

// Kinds of files that commands write on a user's request. A report's JSON field "kind" is name().
enum class FileKind {
  data,
  onnx,
  weights,
  timeline,
  predictions,
  skipped_samples,
  average,  // an average of checkpoints
  run_results,
  evaluation,
  run_evaluation,  // for each of the run's checkpoints
  checkpoint_description,
  model_list,
  step_benchmark,
  all_reduce_benchmark,
  links_benchmark,
  input_benchmark,
  noise_benchmark,
  scaling_prediction,
};
std::string_view name(FileKind kind);

// A file to write; an empty name means none.
struct Output {
  std::filesystem::path file;
  FileKind kind;
};

// The rule for every file that a command writes; to be checked before the command starts its work. Throws Error unless
// the file is new and the folder is writable, or it may be replaced: it is a regular file that this command does not
// read (a folder in `inputs` stands for all files below it), and it is empty, or the content identifies it as an
// earlier output of the same kind, or `overwrite` is set. Checkpoints are never identified: a run's state may be the
// only copy.
void expect_replaceable(const Output& output, const std::vector<std::filesystem::path>& inputs, bool overwrite);

// A timeline's beginning, which identifies it: an event that viewers ignore.
inline constexpr std::string_view kTimelineMark = R"({"name":"annulus timeline","ph":"M","pid":0,"args":{}})";

// The beginning of each line in a run's evaluation, which identifies the file, even if the line is torn.
inline constexpr std::string_view kRunEvaluationMark = R"({"kind":"annulus evaluation of a run",)";

// The beginning of a safetensors file's header (src/weights/safetensors.h), which identifies the file.
inline constexpr std::string_view kSafetensorsMark = R"({"__metadata__":{"format":"pt","producer":"annulus")";

}  // namespace annulus
