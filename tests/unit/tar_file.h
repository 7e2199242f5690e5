#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {

// Content that stands for a link to 1.jpg.
constexpr const char *kHardLink = "\1hard link", *kSoftLink = "\1symbolic link";

// Writes a tar archive of these members, compressed according to the file's name: .tar, .tar.gz or .tar.zst.
void write_tar(const std::filesystem::path& file, const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace annulus::test
