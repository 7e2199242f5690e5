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

// The images in a folder and in those below it, links to folders as well, by path; a link to nothing is among them.
// Throws Error at a link to a folder that it lies in.
std::vector<std::string> images_in(const std::filesystem::path& folder);

}  // namespace annulus
