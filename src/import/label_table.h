#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace annulus {

// A table with image labels, as in Kaggle's competitions: a text file (RFC 4180) with a row for each image. Commas,
// semicolons or tabs divide fields. The first row may name the columns. In a .jsonl file, a line is a JSON object.
struct LabelTable {
  struct Row {
    std::filesystem::path image;
    std::string label;    // a class's name, or a whole number
    std::string problem;  // why the row is unusable; else empty
  };
  std::vector<Row> rows;

  std::vector<std::string> names() const;  // class names, sorted by bytes
  bool has_numbers() const;                // all labels are whole numbers from 0
};

// Reads a table of images below a folder; names may lack the extension .jpg, .jpeg or .png. The image column
// names files; the label column is the other, or among more than two the column called label, labels, class,
// class_name, category or target. Rows with missing images and second rows for an image have a problem. Throws Error
// with the line if the columns are not plain, a row has another number of fields, or labels are real or negative
// numbers.
LabelTable read_label_table(const std::filesystem::path& table, const std::filesystem::path& images);

// Returns the table that Hugging Face's imagefolder has beside images: metadata.csv or metadata.jsonl. Unless
// `required`, only if a column is called label, or another word for it. Throws Error as read_label_table().
std::optional<std::filesystem::path> metadata_in(const std::filesystem::path& folder, bool required);

}  // namespace annulus
