#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/import/image_converter.h"
#include "src/import/import.h"
#include "src/import/source.h"

namespace annulus {

// Holds an import's settings, derived from options and source. Other ranks and a later call read them from job.json
// beside the parts.
struct ImportJob {
  std::string format;
  std::filesystem::path source;
  std::vector<std::filesystem::path> more_sources;
  std::filesystem::path labels;
  std::string label_key;
  Storage storage;
  bool skips_bad_samples = false;
  SourcePlan plan;
  std::vector<std::string> class_names;  // the options', instead of the plan's
  std::string tokenizer;                 // Tokenizer::serialized(); empty: images

  SourceFolders folders(const std::filesystem::path& parts) const {
    return {source, parts, more_sources, labels, label_key};
  }
  const std::vector<std::string>& classes() const { return class_names.empty() ? plan.classes : class_names; }
};

// Names a plan's piece.
struct PieceNumber {
  std::size_t split, piece;
};
std::vector<PieceNumber> pieces_of(const SourcePlan& plan);

// Returns the path of a piece's part.
std::filesystem::path part_of(const std::filesystem::path& parts, const SourceSplit& split, std::size_t piece);

// Throws Error if the options do not fit the source.
ImportJob make_job(const ImportOptions& options, const std::filesystem::path& parts);

// Throws Error if the numbers of class names in the options and in the plan differ. The plan may not have any yet.
void expect_names_to_fit(const ImportJob& job);

// Throws Error because names are not UTF-8, which JSON requires.
[[noreturn]] void fail_for_names(const ImportJob& job);

void write_job(const ImportJob& job, const std::filesystem::path& parts);
ImportJob read_job(const std::filesystem::path& parts);

// Returns how the existing parts differ from `job`: an option's name, or kDifferentSource. Empty if the parts can be
// used.
constexpr const char* kDifferentSource = "the source's files";
std::string difference_to_parts(const ImportJob& job, const std::filesystem::path& parts);

}  // namespace annulus
