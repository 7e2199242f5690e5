#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// Describes a property that distinguishes data sets: {"the number of training images", "60000"}.
struct DataField {
  std::string name, value;
  bool operator==(const DataField&) const = default;
};

// Returns a data set's fields, the most informative first. Images: their size, the classes, the samples (see
// sample_fields), and the normalization, which mostly follows from the samples. Text: the vocabulary, a hash of the
// tokenizer, and the samples.
std::vector<DataField> data_fields(const DatasetInfo& info, std::span<const DataField> samples);

// Returns the fields of a split ("training"). Images: the number of samples, label and image hashes; text: the number
// of tokens and a window hash. Reads at most 65,536 labels and 256 images or windows, spread evenly over the split, so
// a deliberate change may go unnoticed.
std::vector<DataField> sample_fields(const std::string& split, const Samples& dataset);

// Returns the first field that both have with different values: "the number of training images: 500 before, 400 now".
// Ignores fields that only `before` or only `now` has.
std::optional<std::string> first_difference(std::span<const DataField> before, std::span<const DataField> now);

}  // namespace annulus
