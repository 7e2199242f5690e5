#include "src/import/split_folders.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "kernels/error.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

class ImageLister {
 public:
  std::vector<std::string> list(const fs::path& folder) {
    walk(folder);
    std::ranges::sort(paths_);
    return std::move(paths_);
  }

 private:
  void walk(const fs::path& folder) {
    const fs::path real = fs::canonical(folder);
    if (!open_.insert(real).second) fail("{}: a link to a folder that it lies in", folder.string());
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (is_hidden(entry.path())) continue;
      if (entry.is_directory())
        walk(entry.path());
      else if (is_image_name(entry.path()) &&
               (entry.is_regular_file() || !entry.exists()))  // a link to nothing is told
        paths_.push_back(entry.path().string());
    }
    open_.erase(real);
  }

  std::set<fs::path> open_;  // from the folder down to here
  std::vector<std::string> paths_;
};

}  // namespace

bool is_hidden(const std::filesystem::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_image_name(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 3> kEndings{".jpg", ".jpeg", ".png"};
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

std::vector<std::string> images_in(const std::filesystem::path& folder) {
  return ImageLister().list(folder);
}

}  // namespace annulus
