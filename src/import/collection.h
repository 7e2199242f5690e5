#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/import/import_job.h"
#include "src/import/part.h"

namespace annulus {

// Collects the indices from all parts in an import. Takes 12 bytes per sample, and 8 more for text.
struct Collection {
  struct Split {
    std::string name;
    std::vector<std::uint64_t> first_samples;  // per piece, in source order, and the end
    std::vector<std::uint64_t> sizes;          // bytes per sample
    std::vector<std::int32_t> labels;
    std::vector<std::uint8_t> held_out;  // see hold_out(); empty if no samples are held out
    SizeRange image_sizes;
    std::size_t skipped = 0;

    // Text, as in PartIndex.
    std::vector<std::uint64_t> text_bytes;
    std::uint64_t invalid_documents = 0, invalid_bytes = 0;
    bool is_cut = false;  // the end was cut off the only document and is held out

    std::uint64_t bytes() const;
    std::size_t held_out_samples() const;
  };

  std::vector<Split> splits;
  std::vector<SkippedSample> skipped;
  PixelSums pixels;  // over the training images

  std::int32_t largest_label() const;
};

// Throws Error naming the source's piece if a label is so large that most classes would have no image: a typing error
// would otherwise become a million classes. For sources whose classes have no names.
void expect_sensible_labels(const ImportJob& job, const Collection& collection);

// Throws Error if a part is missing or damaged.
Collection collect_parts(const ImportJob& job, const std::filesystem::path& parts);

// Return a value per channel, for pixels scaled to 0..1. stddev_of() throws Error if all pixels in a channel are equal.
std::vector<float> mean_of(const PixelSums& pixels, std::size_t channels);
std::vector<float> stddev_of(const PixelSums& pixels, std::size_t channels);

}  // namespace annulus
