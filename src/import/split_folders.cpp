#include "src/import/split_folders.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <system_error>
#include <utility>

namespace annulus {
namespace {

namespace fs = std::filesystem;

class FileLister {
 public:
  explicit FileLister(bool (*wanted)(const fs::path&)) : wanted_(wanted) {}

  std::vector<FoundFile> list(const fs::path& folder) {
    walk(folder);
    std::ranges::sort(found_, {}, &FoundFile::path);
    return std::move(found_);
  }

 private:
  void walk(const fs::path& folder) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (open_.empty()) root_ = real;
    const bool leads_up = open_.contains(real) || (!open_.empty() && is_within(root_, real));
    if (!error && leads_up) return add(folder, kLeadsUp);
    open_.insert(real);
    fs::directory_iterator entries;
    if (!error) entries = fs::directory_iterator(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) look_at(*entries);
    if (error) add(folder, "cannot read this folder: " + error.message());  // entirely or partly
    open_.erase(real);
  }

  void look_at(const fs::directory_entry& entry) {
    if (is_hidden(entry.path())) return;
    std::error_code error;
    if (entry.is_directory(error)) return walk(entry.path());
    if (wanted_(entry.path()))
      add(entry.path(), "");  // opening the file reports the problem
    else if (error && error != std::errc::no_such_file_or_directory)
      add(entry.path(), error.message());
  }

  void add(const fs::path& path, std::string problem) { found_.push_back({path.string(), std::move(problem)}); }

  bool (*const wanted_)(const fs::path&);
  fs::path root_;            // where the listing starts
  std::set<fs::path> open_;  // from the root down to the current folder
  std::vector<FoundFile> found_;
};

}  // namespace

bool is_hidden(const std::filesystem::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

bool is_image_name(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 3> kEndings{".jpg", ".jpeg", ".png"};
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

std::vector<FoundFile> files_in(const std::filesystem::path& folder, bool (*wanted)(const std::filesystem::path&)) {
  return FileLister(wanted).list(folder);
}

std::vector<FoundFile> images_in(const std::filesystem::path& folder) {
  return files_in(folder, is_image_name);
}

}  // namespace annulus
