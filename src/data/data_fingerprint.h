#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/data/dataset.h"

namespace annulus {

// A property by which data sets are told apart, in words: {"the number of training images", "60000"}.
struct DataField {
  std::string name, value;
  bool operator==(const DataField&) const = default;
};

// A data set's fields, most telling first: the images' size, the classes, its samples (see sample_fields), and the
// normalization, which mostly follows from the samples.
std::vector<DataField> data_fields(const DatasetInfo& info, std::span<const DataField> samples);

// The samples of a split ("training"): their number, and hashes of labels and images. At most 65,536 labels and 256
// images, spread evenly over the split, are read, so a deliberate change may go unseen.
std::vector<DataField> sample_fields(const std::string& split, const Dataset& dataset);

// The first field that both have and that differs: "the number of training images: 500 before, 400 now". Fields that
// only one of them has are not compared.
std::optional<std::string> first_difference(std::span<const DataField> before, std::span<const DataField> now);

}  // namespace annulus
