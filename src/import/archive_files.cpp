#include "src/import/archive_files.h"

#include <algorithm>
#include <cctype>
#include <system_error>

#include "kernels/base/error.h"
#include "src/import/split_folders.h"

namespace annulus {

namespace fs = std::filesystem;

std::string archive_stem(const std::string& name) {
  for (const std::string_view ending : {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

std::vector<std::string> archives_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::error_code none;  // unreadable archives are reported on reading
    if (!entry.is_directory(none) && !is_hidden(name) && !archive_stem(name).empty()) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool has_word(std::string_view name, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    return at < name.size() && std::isalpha(static_cast<unsigned char>(name[at]));
  };
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

fs::path archive_of(const SourceFolders& folders, const std::string& piece) {
  return fs::is_directory(folders.source) ? folders.source / piece : folders.source;
}

std::vector<std::string> archives_of(const fs::path& source, std::string_view split) {
  std::vector<std::string> paths;
  if (fs::is_directory(source / split)) {
    for (const std::string& name : archives_in(source / split)) paths.push_back(std::string(split) + "/" + name);
  } else {
    for (const std::string& name : archives_in(source)) {
      if (has_word(name, split)) paths.push_back(name);
    }
  }
  return paths;
}

std::vector<std::string> training_archives(const fs::path& source) {
  if (!fs::is_directory(source)) return {source.filename().string()};
  std::vector<std::string> paths = archives_of(source, kTrainingName);
  if (!paths.empty()) return paths;
  for (const std::string_view name : kTestNames)
    if (const std::vector<std::string> test = archives_of(source, name); !test.empty())
      fail("{}: has archives of {} images, such as {}, but none of training images: train/*.tar or *train*.tar",
           source.string(), name, test.front());
  return archives_in(source);
}

}  // namespace annulus
