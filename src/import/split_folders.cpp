#include "src/import/split_folders.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace annulus {

bool is_hidden(const std::filesystem::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_image_name(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 3> kEndings{".jpg", ".jpeg", ".png"};
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

}  // namespace annulus
