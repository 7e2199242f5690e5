#include "src/import/label_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "kernels/base/error.h"
#include "src/import/split_folders.h"
#include "src/io/file_io.h"
#include "src/io/json.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;
using Cells = std::vector<std::string>;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kRowsLookedAt = 100;  // to find the image column
constexpr std::array kImageWords{"file",       "filename",   "file_name", "filepath", "image", "images", "image_id",
                                 "image_name", "image_path", "img",       "id",       "path",  "name",   "uuid"};
constexpr std::array kLabelWords{"label", "labels", "class", "class_name", "category", "target"};

// Divides text into rows with fields; quoted fields may contain separators, line ends and doubled quotes.
class Divider {
 public:
  Divider(std::string_view text, char separator) : text_(text), separator_(separator) {}

  bool is_open() const { return is_open_; }  // a quote was not closed

  std::vector<Cells> rows() {
    while (at_ < text_.size()) {
      fields_.push_back(text_[at_] == '"' ? quoted() : plain());
      if (at_ < text_.size() && text_[at_] == separator_) {
        ++at_;
        if (at_ == text_.size()) end_row();
        continue;
      }
      end_row();
    }
    return std::move(rows_);
  }

 private:
  std::string plain() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    std::string_view field = text_.substr(begin, at_ - begin);
    while (field.starts_with(' ')) field.remove_prefix(1);
    while (field.ends_with(' ')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted() {
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"' && text_.substr(at_).starts_with("\"\""))
        ++at_;
      else if (text_[at_] == '"')
        break;
      field += text_[at_];
    }
    is_open_ = is_open_ || at_ >= text_.size();
    if (at_ < text_.size()) ++at_;
    return field + plain();
  }

  void end_row() {
    if (text_.substr(std::min(at_, text_.size())).starts_with("\r\n")) ++at_;
    ++at_;
    if (fields_.size() > 1 || !fields_.front().empty()) rows_.push_back(std::move(fields_));
    fields_.clear();
  }

  const std::string_view text_;
  const char separator_;
  std::size_t at_ = 0;
  bool is_open_ = false;
  Cells fields_;
  std::vector<Cells> rows_;
};

char separator_of(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const auto count = [line](char c) { return std::ranges::count(line, c); };
  return std::ranges::max(std::array{',', ';', '\t'}, {}, count);
}

// Returns a row for each line, which is a JSON object. The first row has the first object's keys.
std::vector<Cells> rows_of_objects(const fs::path& table, std::string_view text) {
  std::vector<Cells> rows;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::string_view object = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(object.size() + 1, text.size()));
    if (object.find_first_not_of(" \t\r") == object.npos) continue;
    const nlohmann::json fields = try_parse_json(object);
    if (!fields.is_object()) fail("{}: line {} is no JSON object", table.string(), line);
    if (rows.empty()) {
      rows.emplace_back();
      for (const auto& [key, value] : fields.items()) rows.front().push_back(key);
    }
    Cells& row = rows.emplace_back();
    for (const std::string& key : Cells(rows.front())) {
      const nlohmann::json value = fields.value(key, nlohmann::json());
      row.push_back(value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump());
    }
  }
  return rows;
}

std::vector<Cells> rows_of(const fs::path& table) {
  std::vector<std::uint8_t> bytes;
  read_file(table.string(), kMostBytes, bytes);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.find('\0') != text.npos) fail("{}: has zero bytes; save it as text in UTF-8", table.string());
  Divider divider(text, separator_of(text));
  std::vector<Cells> rows = table.extension() == ".jsonl" ? rows_of_objects(table, text) : divider.rows();
  if (divider.is_open()) fail("{}: a quote is not closed; row {} would be the last", table.string(), rows.size());
  if (rows.empty()) fail("{}: has no rows", table.string());
  return rows;
}

// Returns the image that a field names; nothing if there is none.
std::optional<fs::path> find_image(const fs::path& images, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const fs::path path = (images / name).lexically_normal();
  std::error_code none;
  if (is_image_name(path) && fs::is_regular_file(path, none)) return path;
  for (const char* ending : {".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG"})
    if (const fs::path longer = path.string() + ending; fs::is_regular_file(longer, none)) return longer;
  return std::nullopt;
}

bool is_word_of(const std::string& field, auto words) {
  std::string lower = field;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(words, lower) != words.end();
}

struct Columns {
  std::size_t image, label;
  bool have_names;
};

class ColumnFinder {
 public:
  ColumnFinder(const fs::path& table, const fs::path& images, const std::vector<Cells>& rows)
      : table_(table), images_(images), rows_(rows) {}

  Columns find() const {
    const std::size_t image = image_column();
    const std::string& first = rows_.front()[image];
    const bool is_image = is_image_name(first) || find_image(images_, first);
    const std::size_t label = label_column(image);
    const bool have_names =
        !is_image && (is_word_of(first, kImageWords) || is_word_of(rows_.front()[label], kLabelWords));
    if (!is_image && !have_names)
      fail("{}: line 1: '{}' is neither an image of {} nor the name of a column such as file, image or id",
           table_.string(), first, images_.string());
    return {image, label, have_names};
  }

 private:
  // Returns how many of the first rows name an image in this column; names with an extension count twice.
  std::size_t images_in(std::size_t column) const {
    std::size_t found = 0;
    for (const Cells& row : std::span(rows_).first(std::min(rows_.size(), kRowsLookedAt)))
      if (column < row.size() && find_image(images_, row[column])) found += is_image_name(row[column]) ? 2 : 1;
    return found;
  }

  // Only columns that the first row calls file, image, id or path are looked at, if there are such.
  std::size_t image_column() const {
    const Cells& first = rows_.front();
    const auto is_named = [&](const std::string& cell) {
      return is_word_of(cell, kImageWords) && !find_image(images_, cell);
    };
    const bool any_named = std::ranges::any_of(first, is_named);
    std::size_t best = 0, most = 0, columns = 0;
    for (std::size_t column = 0; column < first.size(); ++column) {
      const std::size_t found = any_named && !is_named(first[column]) ? 0 : images_in(column);
      columns = found > most ? 1 : columns + (found == most && found > 0 ? 1 : 0);
      if (found > most) most = found, best = column;
    }
    if (most == 0)
      fail("{}: no column of the first {} rows names an image of {}", table_.string(),
           std::min(rows_.size(), kRowsLookedAt), images_.string());
    if (columns > 1)
      fail("{}: several columns name images of {}; call one of them file, and the labels' label", table_.string(),
           images_.string());
    return best;
  }

  std::size_t label_column(std::size_t image) const {
    const Cells& first = rows_.front();
    if (first.size() == 1) fail("{}: has a single column; a column of labels is expected", table_.string());
    if (first.size() == 2) return 1 - image;
    std::vector<std::size_t> found;
    for (std::size_t column = 0; column < first.size(); ++column)
      if (is_word_of(first[column], kLabelWords)) found.push_back(column);
    if (found.size() != 1)
      fail("{}: which column has the labels? Line 1 has {}; give one of them the name 'label'", table_.string(),
           fmt::join(first, ", "));
    return found.front();
  }

  const fs::path& table_;
  const fs::path& images_;
  const std::vector<Cells>& rows_;
};

bool is_whole_number(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

void expect_classes(const fs::path& table, const LabelTable& labels) {
  if (labels.has_numbers()) return;
  const auto usable = [](const LabelTable::Row& row) { return row.problem.empty(); };
  if (std::ranges::none_of(labels.rows, usable)) fail("{}: none of the rows has an image and a label", table.string());
  const bool numbers =
      std::ranges::all_of(labels.rows, [&](const auto& row) { return !usable(row) || is_number(row.label); });
  if (numbers)
    fail("{}: its labels are numbers, but not classes from 0; scripts/import-arrays --from npy reads real numbers",
         table.string());
}

}  // namespace

std::vector<std::string> LabelTable::names() const {
  std::set<std::string> names;
  for (const Row& row : rows)
    if (row.problem.empty()) names.insert(row.label);
  return {names.begin(), names.end()};
}

bool LabelTable::has_numbers() const {
  const std::vector<std::string> labels = names();
  return !labels.empty() && std::ranges::all_of(labels, is_whole_number);
}

std::optional<fs::path> metadata_in(const fs::path& folder, bool required) {
  for (const char* name : {"metadata.csv", "metadata.jsonl"}) {
    const fs::path table = folder / name;
    if (!fs::is_regular_file(table)) continue;
    const std::vector<Cells> rows = rows_of(table);
    const auto is_label = [](const std::string& cell) { return is_word_of(cell, kLabelWords); };
    if (required || std::ranges::any_of(rows.front(), is_label)) return table;
  }
  return std::nullopt;
}

LabelTable read_label_table(const fs::path& table, const fs::path& images) {
  const std::vector<Cells> rows = rows_of(table);
  const Columns columns = ColumnFinder(table, images, rows).find();
  LabelTable labels;
  std::set<fs::path> seen;
  for (std::size_t i = columns.have_names ? 1 : 0; i < rows.size(); ++i) {
    const Cells& row = rows[i];
    if (row.size() != rows.front().size())
      fail("{}: row {} has {} fields, but the first has {}", table.string(), i + 1, row.size(), rows.front().size());
    const auto image = find_image(images, row[columns.image]);
    std::string problem;
    if (!image)
      problem = fmt::format("no such image, named in row {} of {}", i + 1, table.string());
    else if (row[columns.label].empty())
      problem = fmt::format("has no label in row {} of {}", i + 1, table.string());
    else if (!seen.insert(*image).second)
      problem = fmt::format("row {} of {} names it again", i + 1, table.string());
    labels.rows.push_back({image.value_or(images / row[columns.image]), row[columns.label], std::move(problem)});
  }
  expect_classes(table, labels);
  return labels;
}

}  // namespace annulus
