#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/import/import_job.h"
#include "src/import/part.h"

namespace annulus {

// What all parts of an import together say. 12 bytes for each sample.
struct Collection {
  struct Split {
    std::string name;
    std::vector<std::uint64_t> first_samples;  // of each piece, and the end; in the order of the source
    std::vector<std::uint64_t> sizes;          // bytes of each sample
    std::vector<std::int32_t> labels;
    SizeRange image_sizes;
    std::size_t skipped = 0;

    std::uint64_t bytes() const;
  };

  std::vector<Split> splits;
  std::vector<SkippedSample> skipped;
  PixelSums pixels;  // of the training images

  std::int32_t largest_label() const;
};

// Throws Error, naming the piece of the source, if a label is so large that most classes could have no image: a typing
// error would otherwise become a million classes. For sources whose classes have no names.
void expect_sensible_labels(const ImportJob& job, const Collection& collection);

// Throws Error where a part is missing or damaged.
Collection collect_parts(const ImportJob& job, const std::filesystem::path& parts);

// Of pixels scaled to 0..1, one for each channel. Where all pixels of a channel have the same value there is no
// deviation to divide by, and deviation_of throws Error.
std::vector<float> mean_of(const PixelSums& pixels, std::size_t channels);
std::vector<float> deviation_of(const PixelSums& pixels, std::size_t channels);

}  // namespace annulus
