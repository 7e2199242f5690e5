#include "src/import/class_names.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "src/import/run_jobs.h"
#include "src/io/atomic_file.h"
#include "src/io/json.h"

namespace annulus {
namespace {

const SourceSplit& training(const ImportJob& job) {
  return job.plan.splits.front();
}

// Returns the file for a piece's class names.
std::filesystem::path names_file(const ImportJob& job, const std::filesystem::path& parts, std::size_t piece) {
  return part_of(parts, training(job), piece).string() + ".classes.json";
}

std::vector<std::size_t> pieces_without_names(const ImportJob& job, const std::filesystem::path& parts) {
  std::vector<std::size_t> pieces;
  for (std::size_t piece = 0; piece < training(job).pieces.size(); ++piece)
    if (!std::filesystem::exists(names_file(job, parts, piece))) pieces.push_back(piece);
  return pieces;
}

void look_through(const ImportJob& job, const std::filesystem::path& parts, std::size_t piece,
                  const Report& report) try {
  bool wanted = true;
  const nlohmann::json names =
      source_format(job.format).find_classes(job.folders(parts), job.plan, piece, [&](std::size_t bytes) {
        return wanted = report(1, bytes);
      });
  if (!wanted) return;
  const std::string text = names.dump();
  write_atomically(names_file(job, parts, piece), std::as_bytes(std::span(text)));
} catch (const nlohmann::json::exception&) {
  fail_for_names(job);
}

std::vector<std::string> all_names(const ImportJob& job, const std::filesystem::path& parts) {
  std::set<std::string> all;
  for (std::size_t piece = 0; piece < training(job).pieces.size(); ++piece) {
    const std::filesystem::path file = names_file(job, parts, piece);
    std::ifstream stream(file);
    const auto names = try_parse_json(stream);
    if (!names.is_array()) fail("{}: missing or damaged; delete the folder it is in and import again", file.string());
    for (const nlohmann::json& name : names) all.insert(name.get<std::string>());
  }
  return {all.begin(), all.end()};
}

}  // namespace

bool find_classes(const World& world, ImportJob& job, const std::filesystem::path& parts) {
  if (!job.plan.classes_in_pieces) return true;
  std::vector<std::size_t> left;
  if (world.root()) left = pieces_without_names(job, parts);
  const bool done = run_jobs(world, "looking for classes", "images", left, training(job).pieces.size(),
                             [&](std::size_t piece, const Report& report) { look_through(job, parts, piece, report); });
  if (!done) return false;
  world.all_or_none([&] {
    job.plan.classes = all_names(job, parts);
    if (job.plan.classes.size() == 1)
      fail("{}: has no labels: all images have one class, '{}', and KEY.cls is missing beside KEY.jpg (WebDataset)",
           job.source.string(), job.plan.classes.front());
    expect_names_to_fit(job);
  });
  return true;
}

bool has_class_names(const ImportJob& job, const std::filesystem::path& parts) {
  return job.plan.classes_in_pieces && pieces_without_names(job, parts).size() < training(job).pieces.size();
}

}  // namespace annulus
