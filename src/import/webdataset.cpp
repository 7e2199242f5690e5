#include "src/import/webdataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "kernels/base/error.h"
#include "src/import/split_folders.h"
#include "src/io/json.h"

namespace annulus {
namespace {

// Counts the members per field.
using Fields = std::map<std::string, std::size_t>;

std::size_t most_of_a_field(const Fields& fields) {
  std::size_t most = 0;
  for (const auto& [field, count] : fields) most = std::max(most, count);
  return most;
}

// Holds members whose key has a dot by intent: "5.png" and "5.cls" under key "a" were meant as a.5.
struct DottedMembers {
  std::string first;  // the first member's path
  Fields images, labels;
};

// Holds consecutive members with the same key.
struct Group {
  std::string key;
  Fields images, labels;  // "jpg": 1
  std::vector<std::uint8_t> image, label;
  std::map<std::string, DottedMembers> dotted;  // by the text between the key and the ending
  std::string problem;                          // the first member problem

  bool is_complete() const {
    return images.size() == 1 && images.begin()->second == 1 && labels.size() == 1 && labels.begin()->second == 1;
  }
  bool is_empty() const { return images.empty() && labels.empty(); }
};

void add_member(Group& group, ArchiveReader& archive, const MemberName& name, const LabelMember& label) {
  if (!name.is_image() && name.ending() != label.ending) return;
  if (name.ending().size() < name.field.size()) {
    const std::string stem = name.field.substr(0, name.field.size() - name.ending().size() - 1);
    DottedMembers& members = group.dotted[stem];
    if (members.first.empty()) members.first = archive.name();
    ++(name.is_image() ? members.images : members.labels)[name.field];
    return;
  }
  ++(name.is_image() ? group.images : group.labels)[name.field];
  const std::string problem = read_member(archive, name.is_image() ? group.image : group.label);
  if (group.problem.empty()) group.problem = problem;
}

std::string problem_of(const Group& group, const LabelMember& member, std::int64_t& label) {
  const std::string label_problem =
      member.read({reinterpret_cast<const char*>(group.label.data()), group.label.size()}, label);
  std::vector<std::string> images;
  for (const auto& [field, count] : group.images) images.push_back("." + field);
  if (!group.problem.empty()) return group.problem;
  if (images.empty()) return fmt::format("no image (.jpg, .jpeg, .png) beside its .{}", member.ending);
  if (images.size() > 1)
    return fmt::format("has {} images: {}; one is expected", images.size(), fmt::join(images, ", "));
  if (group.labels.empty()) return fmt::format("no .{} beside it", member.ending);
  return label_problem;
}

bool take_named(const Group& group, const std::filesystem::path& file, const LabelMember& label,
                const TakeSample& take) {
  SourceSample sample{fmt::format("{}: {}", file.string(), group.key), 0, group.image, {}};
  const std::size_t copies = std::max(most_of_a_field(group.images), most_of_a_field(group.labels));
  sample.problem = copies > 1 ? fmt::format("{} members of the same name; keys must be unique", copies)
                              : problem_of(group, label, sample.label);
  for (std::size_t copy = 0; copy < copies; ++copy)
    if (!take(sample)) return false;
  return true;
}

// Passes on members with dotted keys. An image without a label beside a sample's image is a field such as mask.png.
bool take_dotted(const Group& group, const std::filesystem::path& file, const std::string& label_ending,
                 const TakeSample& take) {
  const bool any_image = std::ranges::any_of(group.dotted, [](const auto& of) { return !of.second.images.empty(); });
  for (const auto& [stem, members] : group.dotted) {
    const bool is_whole = !members.images.empty() && !members.labels.empty();
    if (!is_whole && !group.is_empty()) continue;
    if (members.images.empty() && any_image) continue;  // counted with the image
    SourceSample sample{fmt::format("{}: {}.{}", file.string(), group.key, stem), 0, {}, {}};
    sample.problem = fmt::format(
        "{}: keys end at the first dot (WebDataset's rule), here '{}', and fields are jpg, jpeg, png and {}; "
        "rename it without further dots",
        members.first, group.key, label_ending);
    std::size_t copies = std::max(most_of_a_field(members.images), most_of_a_field(members.labels));
    for (; copies > 0; --copies)
      if (!take(sample)) return false;
    if (!any_image) return true;
  }
  return true;
}

bool take_group(const Group& group, const std::filesystem::path& file, const LabelMember& label,
                const TakeSample& take) {
  return (group.is_empty() || take_named(group, file, label, take)) && take_dotted(group, file, label.ending, take);
}

std::string without_spaces_at_end(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return std::string(text);
}

// Passes on an image whose name begins with a dot, except macOS's attribute copies.
bool take_nameless(const std::string& path, const std::filesystem::path& file, const TakeSample& take) {
  const std::string base = path.substr(path.rfind('/') + 1);
  if (base.starts_with("._") || !is_image_name("x" + base)) return true;
  return take({fmt::format("{}: {}", file.string(), path), 0, {}, "its name begins with a dot: it has no key"});
}

}  // namespace

MemberName MemberName::of(const std::string& path) {
  const std::size_t begin = path.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = path.find('.', begin);
  if (dot == path.npos || dot == begin) return {};
  MemberName name{path.substr(0, dot), path.substr(dot + 1)};
  std::ranges::transform(name.field, name.field.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

std::string_view MemberName::ending() const {
  return std::string_view(field).substr(field.rfind('.') + 1);
}

bool MemberName::is_image() const {
  return is_image_name("x." + std::string(ending()));
}

LabelMember label_numbers() {
  return {"cls", [](std::string_view content, std::int64_t& label) -> std::string {
            const std::string text = without_spaces_at_end(content);
            const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), label);
            if (error == std::errc() && rest == text.data() + text.size()) return {};
            return "its .cls does not hold a whole number";
          }};
}

LabelMember label_fields(const std::string& key, const std::vector<std::string>& classes) {
  return {"json", [key, &classes](std::string_view content, std::int64_t& label) -> std::string {
            const nlohmann::json fields = try_parse_json(content);
            if (!fields.is_object() || !fields.contains(key))
              return fmt::format("its .json does not have the field '{}'", key);
            const nlohmann::json& value = fields[key];
            if (classes.empty()) {
              if (!value.is_number_integer()) return fmt::format("'{}' of its .json is not a whole number", key);
              label = value.get<std::int64_t>();
              return {};
            }
            if (!value.is_string()) return fmt::format("'{}' of its .json is not a class's name", key);
            const auto name = value.get<std::string>();
            const auto found = std::ranges::find(classes, name);
            label = found - classes.begin();
            return found != classes.end() ? "" : fmt::format("'{}' is not a class of the training images", name);
          }};
}

bool read_webdataset(ArchiveReader& archive, const std::filesystem::path& file, const LabelMember& label,
                     const TakeSample& take) {
  Group group;
  try {
    while (archive.next()) {
      const MemberName name = MemberName::of(archive.name());
      if (name.key.empty()) {
        if (!take_nameless(archive.name(), file, take)) return false;
        continue;
      }
      const bool repeats =
          group.is_complete() && (group.images.contains(name.field) || group.labels.contains(name.field));
      if (name.key != group.key || repeats) {
        if (!take_group(group, file, label, take)) return false;
        group = {};
        group.key = name.key;
      }
      add_member(group, archive, name, label);
    }
  } catch (const ArchiveError&) {
    if (group.is_complete()) take_group(group, file, label, take);
    throw;
  }
  return take_group(group, file, label, take);
}

nlohmann::json read_fields(ArchiveReader& archive) {
  std::vector<std::uint8_t> bytes;
  if (!read_member(archive, bytes).empty()) return {};
  return try_parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string read_member(ArchiveReader& archive, std::vector<std::uint8_t>& bytes) {
  bytes.clear();
  if (!archive.is_file()) return fmt::format("{}: a link or a device; only files are supported", archive.name());
  if (archive.size() > kMostImageBytes)
    return fmt::format("{}: {} bytes; at most {} are supported", archive.name(), archive.size(), kMostImageBytes);
  archive.read(bytes);
  return {};
}

}  // namespace annulus
