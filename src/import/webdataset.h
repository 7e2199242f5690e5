#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/import/archive.h"
#include "src/import/source.h"

namespace annulus {

// A member's name as WebDataset reads it (webdataset/tariterators.py, base_plus_ext): the key is the path up to the
// first dot of the base name, the field is the rest in lower case. Both are empty if the base name has no dot, or
// begins with one.
struct MemberName {
  std::string key, field;

  static MemberName of(const std::string& path);
  std::string_view ending() const;  // of the field: "png" of "mask.png"
  bool is_image() const;            // jpg, jpeg or png by its ending
  bool is_label() const;            // cls by its ending
};

// Reads samples: consecutive members with the same key, of which one field is jpg, jpeg or png, and one is cls, a whole
// number. Another complete sample with the same key is one more. A sample without image or label, with two images, or
// with two members of the same name is passed on with its problem; so is an image or a label whose key has a dot,
// because WebDataset reads another key and field. Other fields are ignored. Returns false if reading should stop.
// Throws ArchiveError after the last complete sample before the damage.
bool read_webdataset(ArchiveReader& archive, const std::filesystem::path& file, const TakeSample& take);

// Returns why the member cannot be used; empty if it can, with its content in `bytes`.
std::string read_member(ArchiveReader& archive, std::vector<std::uint8_t>& bytes);

}  // namespace annulus
