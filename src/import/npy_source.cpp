#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "src/import/npy.h"
#include "src/import/source.h"

namespace annulus {
namespace {

constexpr std::size_t kPieceSamples = 4096;
constexpr const char* kOneHot = "one-hot";  // the variant of a plan whose labels are one class, stored as N x classes

struct NpyFiles {
  std::filesystem::path images, labels;
};

NpyFiles npy_files(const std::filesystem::path& folder, const std::string& split) {
  return {folder / (split + "_images.npy"), folder / (split + "_labels.npy")};
}

PixelShape pixels_of(const NpyFile& images, const std::filesystem::path& file) {
  const Shape& shape = images.shape();
  if (!images.holds_bytes()) fail("{}: images must be uint8", file.string());
  if (shape.size() != 3 && shape.size() != 4) {
    fail("{}: {} dimensions; images have 3, or 4 with channels", file.string(), shape.size());
  }
  if (shape[0] == 0) fail("{}: has no images ({})", file.string(), to_string(shape));
  return checked_shape(file, shape[1], shape[2], shape.size() == 4 ? shape[3] : 1);
}

LabelKind label_kind(const NpyFile& labels) {
  if (labels.holds_floats()) return LabelKind::values;
  return labels.shape().size() == 2 ? LabelKind::several_classes : LabelKind::one_class;
}

// The numbers of a label.
std::size_t width_of(const NpyFile& labels) {
  return labels.shape().size() == 2 ? labels.shape()[1] : 1;
}

// The labels of samples that are not one class.
std::vector<float> read_targets(const NpyFile& labels, const Range& samples) {
  const std::size_t width = width_of(labels);
  const Range elements{samples.begin * width, samples.end * width};
  if (labels.holds_floats()) return labels.read_floats(elements);
  std::vector<float> targets;
  for (const std::int64_t value : labels.read_integers(elements)) targets.push_back(static_cast<float>(value));
  return targets;
}

// Whether each label has a single 1, for one of two classes or more, and zeros.
bool is_one_hot(const NpyFile& labels) {
  const std::size_t width = width_of(labels), count = labels.shape()[0];
  if (labels.shape().size() != 2 || width < 2) return false;
  const std::size_t rows = std::max<std::size_t>(kPieceSamples * 16 / width, 1);
  for (std::size_t begin = 0; begin < count; begin += rows) {
    const std::vector<float> values = read_targets(labels, {begin, std::min(begin + rows, count)});
    for (std::size_t row = 0; row < values.size(); row += width) {
      const auto label = std::span(values).subspan(row, width);
      const auto ones = std::ranges::count(label, 1.0f), zeros = std::ranges::count(label, 0.0f);
      if (ones != 1 || zeros + 1 != std::ssize(label)) return false;
    }
  }
  return true;
}

// Labels that are one-hot in all splits are read as one class each.
void read_one_hot_as_classes(const SourceFolders& folders, SourcePlan& plan) {
  for (const SourceSplit& split : plan.splits)
    if (!is_one_hot(NpyFile(npy_files(folders.source, split.name).labels))) return;
  plan.labels = LabelKind::one_class;
  plan.variant = kOneHot;
  plan.note = fmt::format("{}: the labels are one-hot: read as one of {} classes for each image",
                          folders.source.string(), plan.classes.size());
}

// The class of each one-hot label.
std::vector<std::int64_t> classes_in(std::span<const float> targets, std::size_t width) {
  std::vector<std::int64_t> classes;
  for (std::size_t row = 0; row < targets.size(); row += width)
    classes.push_back(std::ranges::max_element(targets.subspan(row, width)) - (targets.begin() + row));
  return classes;
}

// Sets the kind of the labels, and the names of their numbers. Throws Error if those of another split differ.
void plan_labels(const NpyFiles& files, bool first, SourcePlan& plan) {
  const NpyFile labels(files.labels);
  const LabelKind kind = label_kind(labels);
  const std::size_t names = kind == LabelKind::one_class ? 0 : width_of(labels);
  if (kind == LabelKind::several_classes && names == 1)
    fail("{}: labels of shape {}: save one class for each image as an array of {}", files.labels.string(),
         to_string(labels.shape()), labels.shape()[0]);
  if (!first && (kind != plan.labels || names != plan.classes.size()))
    fail("{}: labels differ from the training labels in type or shape", files.labels.string());
  plan.labels = kind;
  plan.classes.clear();
  for (std::size_t i = 0; i < names; ++i) plan.classes.push_back(std::to_string(i));
}

// Why a label cannot be used; else empty.
std::string problem_of(std::span<const float> targets, LabelKind kind) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (kind == LabelKind::values && !std::isfinite(targets[i])) return fmt::format("value {} is {}", i, targets[i]);
    if (kind == LabelKind::several_classes && targets[i] != 0 && targets[i] != 1)
      return fmt::format("has {} for class {} in its label, which must be 0 or 1", targets[i], i);
  }
  return {};
}

// A piece is a range of samples, named after the first.
SourceSplit plan_split(const NpyFiles& files, const std::string& name, PixelShape& pixels) {
  const NpyFile images(files.images);
  const NpyFile labels(files.labels);
  pixels = pixels_of(images, files.images);
  if (labels.shape() != Shape{images.shape()[0]} &&
      (labels.shape().size() != 2 || labels.shape()[0] != images.shape()[0] || labels.shape()[1] == 0)) {
    fail("{}: labels of shape {} for {} images", files.labels.string(), to_string(labels.shape()), images.shape()[0]);
  }
  SourceSplit split{name, {}};
  for (std::size_t begin = 0; begin < images.shape()[0]; begin += kPieceSamples) {
    split.pieces.push_back(std::to_string(begin));
  }
  return split;
}

SourcePlan plan_npy(const SourceFolders& folders) {
  SourcePlan plan;
  std::vector<std::filesystem::path> files;
  for (const std::string name : {"train", "test"}) {
    const NpyFiles of_split = npy_files(folders.source, name);
    if (name == "test" && !std::filesystem::exists(of_split.images)) break;
    PixelShape pixels;
    plan.splits.push_back(plan_split(of_split, name, pixels));
    plan_labels(of_split, name == "train", plan);
    if (plan.pixels && (plan.pixels->size != pixels.size || plan.pixels->channels != pixels.channels)) {
      fail("{}: image size differs from the training images", of_split.images.string());
    }
    plan.pixels = pixels;
    files.insert(files.end(), {of_split.images, of_split.labels});
  }
  if (plan.labels != LabelKind::one_class) read_one_hot_as_classes(folders, plan);
  plan.fingerprint = fingerprint_of(files);
  return plan;
}

void read_npy_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
                    const TakeSample& take) {
  const NpyFiles files = npy_files(folders.source, split.name);
  const NpyFile images(files.images);
  const std::size_t begin = std::stoull(split.pieces[piece]);
  const Range range{begin, std::min(begin + kPieceSamples, images.shape()[0])};
  const NpyFile labels(files.labels);
  std::vector<std::int64_t> classes(range.size());
  std::vector<float> targets;
  if (plan.variant == kOneHot)
    classes = classes_in(read_targets(labels, range), width_of(labels));
  else if (plan.labels == LabelKind::one_class)
    classes = labels.read_integers(range);
  else
    targets = read_targets(labels, range);
  const std::size_t width = targets.size() / range.size();
  std::vector<std::uint8_t> pixels(plan.pixels->bytes());
  for (std::size_t i = range.begin; i < range.end; ++i) {
    images.read_bytes(i * pixels.size(), pixels);
    const auto own = std::span(targets).subspan((i - range.begin) * width, width);
    if (!take({fmt::format("{}: sample {}", files.labels.string(), i), classes[i - range.begin], pixels,
               problem_of(own, plan.labels), own}))
      return;
  }
}

}  // namespace

const SourceFormat kNpySource{
    "npy",
    "a folder with {train,test}_{images,labels}.npy: images uint8, N x height x width [x channels]; "
    "labels integers; for several classes N x classes of 0 and 1, for regression float32 or float64, N [x values]",
    plan_npy, read_npy_piece};

}  // namespace annulus
