#include <array>

#include "kernels/base/error.h"
#include "src/import/idx.h"
#include "src/import/source.h"

namespace annulus {
namespace {

struct IdxFiles {
  std::filesystem::path images, labels;
};

std::filesystem::path plain_or_compressed(const std::filesystem::path& plain) {
  for (const std::filesystem::path& file : {plain, std::filesystem::path(plain.string() + ".gz")}) {
    if (std::filesystem::exists(file)) return file;
  }
  fail("{}: missing, with and without .gz; the source must be a folder with the four IDX files", plain.string());
}

IdxFiles idx_files(const std::filesystem::path& folder, const std::string& prefix) {
  return {plain_or_compressed(folder / (prefix + "-images-idx3-ubyte")),
          plain_or_compressed(folder / (prefix + "-labels-idx1-ubyte"))};
}

// Checks the headers only; the data may still be truncated.
Shape checked_shapes(const IdxFiles& files) {
  const Shape images = IdxReader(files.images).shape();
  const Shape labels = IdxReader(files.labels).shape();
  if (images.size() != 3) fail("{}: {} dimensions; images have 3", files.images.string(), images.size());
  if (images[0] == 0) fail("{}: has no images ({})", files.images.string(), to_string(images));
  if (labels != Shape{images[0]}) {
    fail("{}: labels of shape {} for {} images", files.labels.string(), to_string(labels), images[0]);
  }
  return images;
}

// A piece is a whole split because gzip has no random access. Its name is the prefix of its files.
SourcePlan plan_idx(const SourceFolders& folders) {
  const IdxFiles train = idx_files(folders.source, "train");
  const IdxFiles test = idx_files(folders.source, "t10k");
  const Shape train_shape = checked_shapes(train);
  const Shape test_shape = checked_shapes(test);
  if (train_shape[1] != test_shape[1] || train_shape[2] != test_shape[2]) {
    fail("{}: image size differs from {}: {} and {}", test.images.string(), train.images.string(),
         to_string(test_shape), to_string(train_shape));
  }
  SourcePlan plan;
  plan.splits = {{"train", {"train"}}, {"test", {"t10k"}}};
  plan.pixels = checked_shape(train.images, train_shape[1], train_shape[2], 1);
  plan.fingerprint = fingerprint_of(std::array{train.images, train.labels, test.images, test.labels});
  return plan;
}

void read_idx_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
                    const TakeSample& take) {
  const IdxFiles files = idx_files(folders.source, split.pieces[piece]);
  const IdxArray labels = read_idx(files.labels);
  IdxReader images(files.images);
  std::vector<std::uint8_t> pixels(plan.pixels->bytes());
  for (std::size_t i = 0; i < labels.values.size(); ++i) {
    images.read(pixels);
    if (!take({fmt::format("{}: sample {}", files.labels.string(), i), labels.values[i], pixels, {}})) return;
  }
  images.expect_end();
}

}  // namespace

const SourceFormat kIdxSource{"idx",
                              "a folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte (MNIST's format), "
                              "gzip-compressed or not",
                              plan_idx, read_idx_piece};

}  // namespace annulus
