#include "src/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/atomic_file.h"
#include "src/io/file_io.h"
#include "src/io/unreadable.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".h5";
constexpr const char* kNewest = "checkpoint.h5";
constexpr const char* kBest = "best.h5";

// Returns nothing if the name is not a checkpoint's.
std::optional<std::uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size() - kSuffix.size();
  std::uint64_t step = 0;
  const auto [rest, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || rest != end) return {};
  return step;
}

// Calls a file-system operation that reports errors in the last argument.
template <class Operation>
void check(const fs::path& file, const char* action, const Operation& operation) {
  std::error_code error;
  operation(error);
  if (error) fail("{}: cannot {}: {}; check the folder and its permissions", file.string(), action, error.message());
}

// On file systems without symbolic links, the links are omitted.
bool knows_no_links(const std::error_code& error) {
  return error == std::errc::operation_not_permitted || error == std::errc::operation_not_supported ||
         error == std::errc::function_not_supported;
}

// A file that cannot be opened now may be the best checkpoint, or a newer checkpoint.
bool is_readable(const fs::path& file) try {
  static_cast<void>(open_to_read(file));
  return true;
} catch (const Unreadable&) {
  return false;
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path run, std::size_t keep, Reached reached, Measure best_by)
    : run_(std::move(run)), keep_(keep), reached_(std::move(reached)), best_by_(best_by) {}

fs::path CheckpointFolder::file_of(std::uint64_t step) const {
  return subfolder() / fmt::format("{}{:09}{}", kPrefix, step, kSuffix);
}

bool CheckpointFolder::empty() const {
  return list().empty() && !fs::exists(fs::symlink_status(link(kNewest)));
}

std::vector<CheckpointFolder::Numbered> CheckpointFolder::list() const {
  std::vector<Numbered> files;
  std::error_code error;
  const fs::directory_iterator entries(subfolder(), error);
  // An unreadable folder must not count as empty: the run would then start over.
  if (error && error != std::errc::no_such_file_or_directory)
    fail("{}: cannot read: {}; check the folder and its permissions", subfolder().string(), error.message());
  for (const fs::directory_entry& entry : entries)
    if (const auto step = step_of(entry.path().filename().string())) files.push_back({*step, entry.path()});
  std::ranges::sort(files, std::ranges::greater{}, &Numbered::step);
  return files;
}

std::optional<StoredCheckpoint> CheckpointFolder::newest() const {
  std::vector<Numbered> files = list();
  // A file that the user copied here to resume from.
  if (const auto status = fs::symlink_status(link(kNewest)); fs::exists(status) && !fs::is_symlink(status))
    files.push_back({0, link(kNewest)});
  std::vector<std::string> damaged;
  std::string reason;  // why the newest is damaged
  for (const Numbered& one : files) {
    try {
      return StoredCheckpoint{CheckpointFile(one.file), damaged};
    } catch (const UnknownVersion&) {
      throw;
    } catch (const Unreadable& error) {
      fail("{}; it may be intact, so no earlier checkpoint is used instead: make it readable, or move it away",
           error.what());
    } catch (const Error& error) {
      if (reason.empty()) reason = error.what();
      damaged.push_back(fmt::format("skipped a damaged checkpoint: {}", error.what()));
    }
  }
  if (files.empty()) return {};
  fail("{}{}", reason,
       files.size() > 1 ? fmt::format("; the {} before it cannot be read either", files.size() - 1) : "");
}

std::optional<fs::path> CheckpointFolder::newest_usable() const {
  for (const Numbered& one : list()) {
    try {
      expect_usable(CheckpointFile(one.file));
      return one.file;
    } catch (const Error&) {  // try the next
    }
  }
  return {};
}

std::optional<Score> CheckpointFolder::best() const {
  const auto best = best_of(list());
  return best ? std::optional(best->score) : std::nullopt;
}

fs::path CheckpointFolder::best_file() const {
  const auto best = best_of(list());
  if (!best) fail("{}: no checkpoint with an evaluation", subfolder().string());
  return best->where.file;
}

std::optional<CheckpointFolder::Scored> CheckpointFolder::best_of(const std::vector<Numbered>& files) const {
  std::optional<Scored> best;
  for (const Numbered& one : files)
    if (const auto score = read_score(one.file);
        score && score->value(best_by_) && !(best && is_better(best_by_, best->score, *score)))
      best = {one, *score};
  return best;
}

void CheckpointFolder::write(const CheckpointHeader& header, const ArraySource& arrays) const {
  const std::uint64_t step = header.run.step;
  check(subfolder(), "make the folder", [&](auto& error) { fs::create_directories(subfolder(), error); });
  remove_unfinished();
  const fs::path file = file_of(step);
  write_checkpoint(file, header, arrays, [&] { reached_(step, "written"); });
  reached_(step, "renamed");

  // Later checkpoints were damaged when the run resumed from an earlier checkpoint.
  std::vector<Numbered> files = list();
  const auto is_later = [&](const Numbered& one) { return one.step > step; };
  const auto last = std::ranges::find_if_not(files, is_later);
  std::vector<Numbered> superfluous(files.begin(), last);
  files.erase(files.begin(), last);

  const auto best = best_of(files);
  point(kNewest, file);
  if (best) point(kBest, best->where.file);
  reached_(step, "linked");
  for (std::size_t i = keep_; i < files.size(); ++i)
    if (!best || files[i].step != best->where.step) superfluous.push_back(files[i]);
  for (const Numbered& one : superfluous)
    if (is_readable(one.file)) check(one.file, "remove", [&](auto& error) { fs::remove(one.file, error); });
}

// Removes a killed writer's partial file, which may be as large as a checkpoint.
void CheckpointFolder::remove_unfinished() const {
  const std::string ending = AtomicFile::partial(std::string(kSuffix)).string();
  for (const fs::directory_entry& entry : fs::directory_iterator(subfolder())) {
    const fs::path& file = entry.path();
    if (file.filename().string().starts_with(kPrefix) && file.filename().string().ends_with(ending))
      check(file, "remove", [&](auto& error) { fs::remove(file, error); });
  }
}

// Atomic: at any instant the link is either the old or the new.
void CheckpointFolder::point(const std::string& name, const fs::path& file) const {
  const fs::path place = link(name), partial = AtomicFile::partial(place);
  check(place, "write", [&](auto& error) {
    fs::remove(partial, error);  // left behind by a killed writer
    if (!error) fs::create_symlink(file.lexically_relative(run_), partial, error);
    if (knows_no_links(error)) return error.clear();
    if (!error) fs::rename(partial, place, error);
  });
}

StoredCheckpoint find_checkpoint(const fs::path& place) {
  if (!fs::is_directory(place)) return {CheckpointFile(place), {}};
  auto newest = CheckpointFolder(place, 1).newest();
  if (!newest) fail("{}: no checkpoint in this folder; give a checkpoint file or a run's folder", place.string());
  return *std::move(newest);
}

}  // namespace annulus
