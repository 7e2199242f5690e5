#include "src/data/import.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ranges>
#include <span>

#include "kernels/error.h"
#include "src/atomic_file.h"
#include "src/data/hdf5.h"
#include "src/data/idx.h"

namespace annulus {
namespace {

struct Split {
  std::string name;
  std::filesystem::path images_file, labels_file;
  IdxArray images, labels;

  std::size_t size() const { return images.shape[0]; }
};

std::filesystem::path plain_or_compressed(const std::filesystem::path& plain) {
  for (const std::filesystem::path& file : {plain, std::filesystem::path(plain.string() + ".gz")}) {
    if (std::filesystem::exists(file)) return file;
  }
  fail("{}: missing, with and without .gz; the source must be a folder with the four IDX files", plain.string());
}

Split read_split(const std::filesystem::path& folder, const std::string& name, const std::string& prefix) {
  const auto images_file = plain_or_compressed(folder / (prefix + "-images-idx3-ubyte"));
  const auto labels_file = plain_or_compressed(folder / (prefix + "-labels-idx1-ubyte"));
  Split split{name, images_file, labels_file, read_idx(images_file), read_idx(labels_file)};
  const Shape& images = split.images.shape;
  const Shape& labels = split.labels.shape;
  if (images.size() != 3) fail("{}: {} dimensions; images have 3", images_file.string(), images.size());
  if (split.images.values.empty()) fail("{}: holds no images ({})", images_file.string(), to_string(images));
  if (labels != Shape{images[0]}) {
    fail("{}: labels of shape {} for {} images", labels_file.string(), to_string(labels), images[0]);
  }
  return split;
}

void require_same_size(const Split& train, const Split& test) {
  if (std::ranges::equal(train.images.shape | std::views::drop(1), test.images.shape | std::views::drop(1))) return;
  fail("{}: images of another size than in {}: {} and {}", test.images_file.string(), train.images_file.string(),
       to_string(test.images.shape), to_string(train.images.shape));
}

std::vector<std::string> numbered_classes(const Split& train, const Split& test) {
  const int last = std::max(std::ranges::max(train.labels.values), std::ranges::max(test.labels.values));
  std::vector<std::string> names;
  for (int label = 0; label <= last; ++label) names.push_back(std::to_string(label));
  return names;
}

void require_labels_below(std::size_t classes, const Split& split) {
  const std::vector<std::uint8_t>& labels = split.labels.values;
  const auto bad = std::ranges::find_if(labels, [=](std::uint8_t label) { return label >= classes; });
  if (bad == labels.end()) return;
  fail("{}: sample {} has label {}, but {} classes are named", split.labels_file.string(), bad - labels.begin(), *bad,
       classes);
}

struct Moments {
  float mean, deviation;
};

// Of pixels scaled to 0..1, by way of the histogram: exact until the last few operations.
Moments moments(const Split& split) {
  std::array<std::uint64_t, 256> histogram{};
  for (const std::uint8_t pixel : split.images.values) ++histogram[pixel];
  double sum = 0, sum_of_squares = 0;
  for (std::size_t value = 0; value < histogram.size(); ++value) {
    const double scaled = static_cast<double>(value) / 255;
    sum += static_cast<double>(histogram[value]) * scaled;
    sum_of_squares += static_cast<double>(histogram[value]) * scaled * scaled;
  }
  const auto count = static_cast<double>(split.images.values.size());
  const double mean = sum / count;
  const double variance = sum_of_squares / count - mean * mean;
  // A constant's variance is zero but for rounding, and no deviation to divide by.
  if (variance < 1e-12) fail("{}: all pixels have the same value", split.images_file.string());
  return {static_cast<float>(mean), static_cast<float>(std::sqrt(variance))};
}

void write_split(hdf5::Group& root, const Split& split) {
  hdf5::Group group = root.create_group(split.name);
  Shape with_channels = split.images.shape;
  with_channels.push_back(1);
  group.write("images", with_channels, std::span(split.images.values));
  group.write("labels", split.labels.shape, std::span(split.labels.values));
}

void import_idx(const ImportOptions& options) {
  const Split train = read_split(options.source, "train", "train");
  const Split test = read_split(options.source, "test", "t10k");
  require_same_size(train, test);
  const auto classes = options.classes.empty() ? numbered_classes(train, test) : options.classes;
  const Moments of_training = moments(train);
  hdf5::NewFile file(options.output);
  hdf5::Group root = file.root();
  root.set_strings("classes", classes);
  root.set_floats("mean", {{of_training.mean}});
  root.set_floats("deviation", {{of_training.deviation}});
  for (const Split* split : {&train, &test}) {
    require_labels_below(classes.size(), *split);
    write_split(root, *split);
  }
  write_atomically(options.output, file.image());
  for (const Split* split : {&train, &test}) {
    fmt::print("{}: {}: {} images of {}x{}, {} classes\n", options.output.string(), split->name, split->size(),
               split->images.shape[1], split->images.shape[2], classes.size());
  }
}

}  // namespace

void import_data(const ImportOptions& options) {
  if (options.format != "idx") fail("unknown format '{}'; known is: idx", options.format);
  import_idx(options);
}

}  // namespace annulus
