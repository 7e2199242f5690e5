#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/import/source.h"

namespace annulus {

// Returns the name without an archive's ending; empty if there is no such ending.
std::string archive_stem(const std::string& name);

// Finds "train" in "train-000.tar" and "imagenet-train-000.tar", but not in "trainer.tar".
bool has_word(std::string_view name, std::string_view word);

// Returns a folder's archive names, sorted.
std::vector<std::string> archives_in(const std::filesystem::path& folder);

// Returns paths within the source: archives in the split's folder or, if there is no such folder, archives with the
// split in their names.
std::vector<std::string> archives_of(const std::filesystem::path& source, std::string_view split);

// Returns the training archives: the source itself, archives_of("train"), or all archives in the source. Throws Error
// if only other splits have archives.
std::vector<std::string> training_archives(const std::filesystem::path& source);

// Returns a piece's file: the source is a folder of archives, or an archive.
std::filesystem::path archive_of(const SourceFolders& folders, const std::string& piece);

}  // namespace annulus
