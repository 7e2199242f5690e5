#include "src/io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "kernels/base/error.h"
#include "src/io/file_io.h"
#include "src/io/hdf5.h"
#include "src/io/json.h"
#include "src/io/standard_output.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

// FORMAT.md.
bool is_data(const fs::path& file) try {
  const hdf5::File opened(file);
  const hdf5::Group root = opened.root();
  const bool has_images = (root.has_attribute("classes") || root.has_attribute("values")) &&
                          root.has_attribute("mean") && root.has_attribute("deviation");
  return (has_images || root.has_attribute("vocabulary")) &&
         (root.has("train") || root.has("validation") || root.has("test"));
} catch (const Error&) {
  return false;
}

std::string begin_of(const fs::path& file, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

// Looks at the message's second field, after the format's version: producer_name, with the length.
bool is_onnx(const fs::path& file) {
  constexpr std::string_view producer =
      "\x12\x07"
      "annulus";
  return begin_of(file, 64).find(producer) != std::string::npos;
}

nlohmann::json first_line(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  std::getline(stream, line);
  return try_parse_json(line);
}

bool are_predictions(const fs::path& file) {
  const nlohmann::json line = first_line(file);
  return line.is_object() && line.contains("image") && (line.contains("top") || line.contains("error"));
}

// Looks for lines with a name, a tab and a reason.
bool lists_skipped(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  return std::getline(stream, line) && std::ranges::count(line, '\t') == 1;
}

bool is_report(const fs::path& file, FileKind kind) {
  std::ifstream stream(file, std::ios::binary);
  const nlohmann::json report = try_parse_json(stream);
  return report.is_object() && report.value("kind", nlohmann::json()) == name(kind);
}

// Whether write_json() writes this kind.
bool is_report(FileKind kind) {
  return kind >= FileKind::run_results && kind != FileKind::run_evaluation;
}

bool is_recognized(const fs::path& file, FileKind kind) {
  if (fs::file_size(file) == 0) return true;
  switch (kind) {
    case FileKind::data:
      return is_data(file);
    case FileKind::onnx:
      return is_onnx(file);
    case FileKind::weights:
      return begin_of(file, 256).find(kSafetensorsMark) != std::string::npos;
    case FileKind::timeline:
      return begin_of(file, 256).find(kTimelineMark) != std::string::npos;
    case FileKind::predictions:
      return are_predictions(file);
    case FileKind::skipped_samples:
      return lists_skipped(file);
    case FileKind::run_evaluation:
      return kRunEvaluationMark.starts_with(begin_of(file, kRunEvaluationMark.size()));
    case FileKind::average:
      return false;
    default:
      return is_report(file, kind);
  }
}

bool is_below(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  const fs::path below = fs::weakly_canonical(file, error), above = fs::weakly_canonical(folder, error);
  return !error && std::ranges::mismatch(above, below).in1 == above.end();
}

void expect_writable_folder(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_to_write(file);
}

}  // namespace

std::string_view name(FileKind kind) {
  switch (kind) {
    case FileKind::data:
      return "data file";
    case FileKind::onnx:
      return "ONNX file of annulus";
    case FileKind::weights:
      return "safetensors file of annulus";
    case FileKind::timeline:
      return "annulus timeline";
    case FileKind::predictions:
      return "list of predictions";
    case FileKind::skipped_samples:
      return "list of skipped samples";
    case FileKind::average:
      return "average of checkpoints";
    case FileKind::run_results:
      return "annulus run";
    case FileKind::evaluation:
      return "annulus evaluation";
    case FileKind::run_evaluation:
      return "annulus evaluation of a run";
    case FileKind::checkpoint_description:
      return "annulus checkpoint description";
    case FileKind::model_list:
      return "annulus model list";
    case FileKind::step_benchmark:
      return "annulus step benchmark";
    case FileKind::all_reduce_benchmark:
      return "annulus all-reduce benchmark";
    case FileKind::links_benchmark:
      return "annulus links benchmark";
    case FileKind::input_benchmark:
      return "annulus input benchmark";
    case FileKind::noise_benchmark:
      return "annulus noise benchmark";
    case FileKind::scaling_prediction:
      return "annulus scaling prediction";
  }
  return "";
}

void expect_replaceable(const Output& output, const std::vector<fs::path>& inputs, bool overwrite) {
  const fs::path& file = output.file;
  if (file.empty() || (file == kStandardOutput && is_report(output.kind))) return;
  if (file == kStandardOutput)
    fail("-: the {} cannot go to standard output; give the name of a file", name(output.kind));
  expect_writable_folder(file);
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() == fs::file_type::directory) fail("{}: is a folder; give the name of a file", file.string());
  if (status.type() != fs::file_type::regular)
    fail("{}: is not a regular file and will not be replaced", file.string());
  const bool is_recognized_output = is_recognized(file, output.kind);
  for (const fs::path& input : inputs) {
    const bool is_read = fs::equivalent(file, input, error) ||
                         (!is_recognized_output && fs::is_directory(input, error) && is_below(file, input));
    if (is_read) fail("{}: is an input of this command, so it cannot be its output; give another file", file.string());
  }
  if (!overwrite && !is_recognized_output)
    fail("{}: exists already{}; give another file, or --overwrite to replace it", file.string(),
         output.kind == FileKind::average ? "" : fmt::format(", and is no {}", name(output.kind)));
}

}  // namespace annulus
