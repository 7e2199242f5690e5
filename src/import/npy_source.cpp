#include <algorithm>

#include "kernels/base/error.h"
#include "src/import/npy.h"
#include "src/import/source.h"

namespace annulus {
namespace {

constexpr std::size_t kPieceSamples = 4096;

struct NpyFiles {
  std::filesystem::path images, labels;
};

NpyFiles files_of(const std::filesystem::path& folder, const std::string& split) {
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

// A piece is a range of samples, named after the first.
SourceSplit plan_split(const NpyFiles& files, const std::string& name, PixelShape& pixels) {
  const NpyFile images(files.images);
  const NpyFile labels(files.labels);
  pixels = pixels_of(images, files.images);
  if (labels.shape() != Shape{images.shape()[0]}) {
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
    const NpyFiles of_split = files_of(folders.source, name);
    if (name == "test" && !std::filesystem::exists(of_split.images)) break;
    PixelShape pixels;
    plan.splits.push_back(plan_split(of_split, name, pixels));
    if (plan.pixels && (plan.pixels->size != pixels.size || plan.pixels->channels != pixels.channels)) {
      fail("{}: image size differs from the training images", of_split.images.string());
    }
    plan.pixels = pixels;
    files.insert(files.end(), {of_split.images, of_split.labels});
  }
  plan.fingerprint = fingerprint_of(files);
  return plan;
}

void read_npy_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
                    const TakeSample& take) {
  const NpyFiles files = files_of(folders.source, split.name);
  const NpyFile images(files.images);
  const std::size_t begin = std::stoull(split.pieces[piece]);
  const Range range{begin, std::min(begin + kPieceSamples, images.shape()[0])};
  const std::vector<std::int64_t> labels = NpyFile(files.labels).read_integers(range);
  std::vector<std::uint8_t> pixels(plan.pixels->bytes());
  for (std::size_t i = range.begin; i < range.end; ++i) {
    images.read_bytes(i * pixels.size(), pixels);
    if (!take({fmt::format("{}: sample {}", files.labels.string(), i), labels[i - range.begin], pixels, {}})) return;
  }
}

}  // namespace

const SourceFormat kNpySource{
    "npy",
    "a folder with {train,test}_{images,labels}.npy: images uint8, N x height x width [x channels]; labels integers",
    plan_npy, read_npy_piece};

}  // namespace annulus
