#include "src/import/collection.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "kernels/base/error.h"

namespace annulus {
namespace {

PartIndex read_checked(const std::filesystem::path& part) {
  PartIndex index = read_part_index(part);
  const std::filesystem::path data = part_data_file(part);
  if (!std::filesystem::exists(data) || std::filesystem::file_size(data) != index.bytes()) {
    fail("{}: missing or damaged; delete the folder it is in and import again", data.string());
  }
  return index;
}

void append(Collection::Split& split, const PartIndex& index) {
  split.sizes.insert(split.sizes.end(), index.sizes.begin(), index.sizes.end());
  std::ranges::transform(index.labels, std::back_inserter(split.labels),
                         [](std::int64_t label) { return static_cast<std::int32_t>(label); });
  split.first_samples.push_back(split.sizes.size());
  split.image_sizes.add(index.statistics.sizes);
  split.skipped += index.skipped.size();
  split.text_bytes.insert(split.text_bytes.end(), index.text_bytes.begin(), index.text_bytes.end());
  split.invalid_documents += index.invalid_documents;
  split.invalid_bytes += index.invalid_bytes;
}

// Accepts labels that fit a byte for any number of images.
constexpr std::size_t kFewClasses = 256;

long double average(std::uint64_t sum, const PixelSums& pixels) {
  return static_cast<long double>(sum) / static_cast<long double>(pixels.count);
}

}  // namespace

std::uint64_t Collection::Split::bytes() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::size_t Collection::Split::held_out_samples() const {
  return static_cast<std::size_t>(std::ranges::count(held_out, 1));
}

std::int32_t Collection::largest_label() const {
  std::int32_t largest = -1;
  for (const Split& split : splits) largest = std::max(largest, std::ranges::max(split.labels));
  return largest;
}

void expect_sensible_labels(const ImportJob& job, const Collection& collection) {
  std::size_t images = 0;
  for (const Collection::Split& split : collection.splits) images += split.labels.size();
  for (std::size_t number = 0; number < collection.splits.size(); ++number) {
    const Collection::Split& split = collection.splits[number];
    const auto largest = std::ranges::max_element(split.labels);
    if (static_cast<std::size_t>(*largest) < std::max(images, kFewClasses)) continue;
    const auto sample = static_cast<std::uint64_t>(largest - split.labels.begin());
    const auto piece = std::ranges::upper_bound(split.first_samples, sample) - split.first_samples.begin() - 1;
    fail(
        "{}: label {} in {} ({} images), but there are only {} images in total; correct it, or name all classes with "
        "--classes",
        job.source.string(), *largest, job.plan.splits[number].pieces[static_cast<std::size_t>(piece)], split.name,
        images);
  }
}

Collection collect_parts(const ImportJob& job, const std::filesystem::path& parts) {
  Collection all;
  for (const SourceSplit& source : job.plan.splits) {
    Collection::Split& split = all.splits.emplace_back();
    split.name = source.name;
    split.first_samples.push_back(0);
    for (std::size_t piece = 0; piece < source.pieces.size(); ++piece) {
      const PartIndex index = read_checked(part_of(parts, source, piece));
      append(split, index);
      all.skipped.insert(all.skipped.end(), index.skipped.begin(), index.skipped.end());
      if (split.name == "train") all.pixels.add(index.statistics.pixels);
    }
  }
  return all;
}

std::vector<float> mean_of(const PixelSums& pixels, std::size_t channels) {
  std::vector<float> means;
  for (std::size_t channel = 0; channel < channels; ++channel)
    means.push_back(static_cast<float>(average(pixels.sums[channel], pixels) / 255));
  return means;
}

std::vector<float> stddev_of(const PixelSums& pixels, std::size_t channels) {
  std::vector<float> stddevs;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const long double mean = average(pixels.sums[channel], pixels);
    const long double variance = average(pixels.squares[channel], pixels) - mean * mean;
    // A constant's variance is zero but for rounding.
    if (variance < 1e-7L) {
      fail("all pixels of the training images have the same value; set the divisor with --std");
    }
    stddevs.push_back(static_cast<float>(std::sqrt(variance) / 255));
  }
  return stddevs;
}

}  // namespace annulus
