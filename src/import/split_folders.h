#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

// Names of splits, as data sets are laid out: what trains, and what a data file calls "test". "val" comes first: where
// there are both, "test" has no labels.
constexpr std::string_view kTrainingName = "train";
constexpr std::string_view kTestNames[] = {"val", "validation", "test"};

bool is_hidden(const std::filesystem::path& path);

// By the name's end: JPEG or PNG, whatever the case.
bool is_image_name(const std::filesystem::path& path);

// Whether `inner` is `outer` or lies below it; both canonical.
bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer);

constexpr const char* kLeadsUp = "a link to a folder that it lies in";

// A file, or what cannot be read.
struct FoundImage {
  std::string path;
  std::string problem;  // why it cannot be read, if that is known before it is opened; else empty
};

// The images in a folder and in those below it, links to folders as well, by path. Also, with the reason, folders that
// cannot be read, links to a folder that they lie in, and links that lead round in a circle.
std::vector<FoundImage> images_in(const std::filesystem::path& folder);

}  // namespace annulus
