#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus {

// Names of splits, as data sets are laid out: what trains, and what a data file calls "test". "val" comes first: where
// there are both, "test" has no labels.
constexpr std::string_view kTrainingName = "train";
constexpr std::string_view kTestNames[] = {"val", "validation", "test"};

bool is_hidden(const std::filesystem::path& path);

// By the name's end: JPEG or PNG, whatever the case.
bool is_image_name(const std::filesystem::path& path);

}  // namespace annulus
