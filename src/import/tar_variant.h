#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/import/source.h"

namespace annulus {

// A plan's variant. Labels come from a number in KEY.cls beside KEY.jpg (WebDataset), a number or a name in KEY.json,
// the image's folder, or the archive's name (ImageNet). With KEY.json, the variant also has a field: "json numbers
// label".
constexpr const char *kByNumber = "numbers", *kByFolder = "folders", *kByArchive = "archives";
constexpr std::string_view kByFieldNumber = "json numbers ", kByFieldName = "json names ";

// Returns the field of KEY.json that a variant has; empty if its labels are not in KEY.json.
std::string label_field_of(const std::string& variant);

// The archives' first members decide the variant.
constexpr std::size_t kMembersLookedAt = 64;

// Detects the variant from the first training archive whose first image comes before any damage. Reading reports
// damaged archives. Throws Error if the images have no labels.
std::string find_variant(const SourceFolders& folders, const std::vector<std::string>& archives);

std::string class_by_folder(const std::string& member);
std::string class_by_archive(const std::string& path);

}  // namespace annulus
