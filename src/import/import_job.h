#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/import/image_converter.h"
#include "src/import/import.h"
#include "src/import/source.h"

namespace annulus {

// What an import does, once its options have been held against the source. It is kept beside the parts that it makes,
// in the file job.json: that tells the other ranks, and a later call, what the parts belong to.
struct ImportJob {
  std::string format;
  std::filesystem::path source;
  Storage storage;
  bool skips_bad_samples = false;
  SourcePlan plan;
  std::vector<std::string> class_names;  // those of the options, instead of the plan's

  const std::vector<std::string>& classes() const { return class_names.empty() ? plan.classes : class_names; }
};

// A piece of a plan.
struct PieceNumber {
  std::size_t split, piece;
};
std::vector<PieceNumber> pieces_of(const SourcePlan& plan);

// Where a piece's part lies.
std::filesystem::path part_of(const std::filesystem::path& parts, const SourceSplit& split, std::size_t piece);

// Throws Error where the options do not fit the source.
ImportJob make_job(const ImportOptions& options, const std::filesystem::path& parts);

// Throws Error where the options name another number of classes than the plan, which may not know them yet.
void expect_names_to_fit(const ImportJob& job);

// Where JSON refuses them.
[[noreturn]] void fail_for_names(const ImportJob& job);

void write_job(const ImportJob& job, const std::filesystem::path& parts);
ImportJob read_job(const std::filesystem::path& parts);

// In what the parts that lie there were made differently from what `job` would make: an option's name, or
// kDifferentSource; empty where they serve.
constexpr const char* kDifferentSource = "the source's files";
std::string difference_to_parts(const ImportJob& job, const std::filesystem::path& parts);

}  // namespace annulus
