#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/import/archive.h"
#include "src/import/source.h"

namespace annulus {

// Splits a member's name as WebDataset does (webdataset/tariterators.py, base_plus_ext): the key is the path up to the
// base name's first dot, the field is the rest in lower case. Both are empty if the base name has no dot, or begins
// with a dot.
struct MemberName {
  std::string key, field;

  static MemberName of(const std::string& path);
  std::string_view ending() const;  // the field's: "png" for "mask.png"
  bool is_image() const;            // by the ending: jpg, jpeg or png
};

// The member with a sample's label: KEY.cls, a whole number, or KEY.json.
struct LabelMember {
  std::string ending = "cls";
  // Reads the label from the member's content. Returns why it is unusable, or nothing.
  std::function<std::string(std::string_view content, std::int64_t& label)> read;
};

// Labels are whole numbers in KEY.cls.
LabelMember label_numbers();

// Labels are a field of KEY.json: whole numbers, or if `classes` is not empty names among these, which must outlive the
// result.
LabelMember label_fields(const std::string& key, const std::vector<std::string>& classes);

// Reads samples: consecutive members with the same key, among them a jpg, jpeg or png field and a label's field. A
// repeated field after a complete sample starts another sample with the same key. Passes on, with a problem, a sample
// without image or label, with two images, or with two equally named members, and an image or a label whose key has a
// dot, because WebDataset reads another key and field. Ignores other fields. Returns false if reading should stop.
// Throws ArchiveError after the last complete sample before the damage.
bool read_webdataset(ArchiveReader& archive, const std::filesystem::path& file, const LabelMember& label,
                     const TakeSample& take);

// Returns the JSON object in the member; a value that is not an object if the member is unusable or holds none.
nlohmann::json read_fields(ArchiveReader& archive);

// Returns why the member is unusable; empty if usable, with the content in `bytes`.
std::string read_member(ArchiveReader& archive, std::vector<std::uint8_t>& bytes);

}  // namespace annulus
