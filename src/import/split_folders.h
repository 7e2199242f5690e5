#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

// Name folders with the training split, and with the split that a data file calls "test". "val" comes first, because in
// data sets with both "test" has no labels.
constexpr std::string_view kTrainingName = "train";
constexpr std::string_view kTestNames[] = {"val", "validation", "test"};

bool is_hidden(const std::filesystem::path& path);

// Returns whether the name has a JPEG or PNG extension, in any case.
bool is_image_name(const std::filesystem::path& path);

// Returns whether `inner` is `outer` or lies below it; both canonical.
bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer);

constexpr const char* kLeadsUp = "a link to a folder that it lies in";

// Names a file, or an entry that cannot be read.
struct FoundFile {
  std::string path;
  std::string problem;  // why it is unreadable, if known before opening; else empty
};

// Returns the wanted files in a folder and its subfolders that are not hidden, following links to folders, sorted by
// path. Also returns, with the reason, unreadable folders, links to a folder that contains them, and link cycles.
std::vector<FoundFile> files_in(const std::filesystem::path& folder, bool (*wanted)(const std::filesystem::path&));

std::vector<FoundFile> images_in(const std::filesystem::path& folder);

}  // namespace annulus
