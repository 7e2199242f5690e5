#include "src/data/dataset.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>
#include <system_error>

#include "kernels/error.h"
#include "src/data/hdf5.h"
#include "src/file_descriptor.h"

namespace annulus {

// Where the pixels come from.
class Dataset::Images {
 public:
  virtual ~Images() = default;
  virtual void read(std::size_t sample, std::span<std::uint8_t> pixels) const = 0;

  class Contiguous;
  class Chunked;
};

// Images that lie in the file one after the other: HDF5 has said where, and is not asked again. pread(2) needs neither
// its lock nor a file position, and costs a fraction of a hyperslab read.
class Dataset::Images::Contiguous final : public Images {
 public:
  Contiguous(const std::string& path, std::uint64_t offset)
      : path_(path), offset_(offset), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_) fail("{}: cannot open: {}", path_, std::generic_category().message(errno));
  }

  void read(std::size_t sample, std::span<std::uint8_t> pixels) const override {
    std::uint64_t position = offset_ + sample * pixels.size();
    while (!pixels.empty()) {
      const ssize_t count = ::pread(file_.number(), pixels.data(), pixels.size(), static_cast<off_t>(position));
      if (count == 0) fail("{}: ends within image {}; was it cut off while in use?", path_, sample);
      if (count < 0 && errno != EINTR) {
        fail("{}: cannot read image {}: {}", path_, sample, std::generic_category().message(errno));
      }
      if (count > 0) {
        position += static_cast<std::uint64_t>(count);
        pixels = pixels.subspan(static_cast<std::size_t>(count));
      }
    }
  }

 private:
  std::string path_;
  std::uint64_t offset_;
  FileDescriptor file_;
};

// Chunked or compressed images: slow, but any file that h5py can make is read.
class Dataset::Images::Chunked final : public Images {
 public:
  explicit Chunked(hdf5::Dataset images) : images_(std::move(images)) {
    if (!hdf5::thread_safe()) {
      fail(
          "{}: chunked or compressed, and this HDF5 is not thread-safe; make the images contiguous "
          "(h5repack -l CONTI -f NONE)",
          images_.place());
    }
  }

  void read(std::size_t sample, std::span<std::uint8_t> pixels) const override { images_.read_row(sample, pixels); }

 private:
  hdf5::Dataset images_;
};

namespace {

void require_per_channel(const hdf5::Group& root, const char* name, const std::vector<float>& values,
                         std::size_t channels) {
  if (values.size() != channels) {
    fail("{} attribute '{}': {} values for {} channels", root.place(), name, values.size(), channels);
  }
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    fail("{} attribute '{}': not a finite number", root.place(), name);
  }
}

DatasetInfo read_info(const hdf5::Group& root, const hdf5::Dataset& images) {
  const Shape shape = images.shape();
  if (shape.size() != 4 || !images.holds<std::uint8_t>()) {
    fail("{}: must be uint8 images x height x width x channels", images.place());
  }
  if (std::ranges::count(shape, 0u) != 0) fail("{}: no images (shape {})", images.place(), to_string(shape));
  const DatasetInfo info{
      shape[0], shape[1], shape[2], shape[3], root.strings("classes"), root.floats("mean"), root.floats("deviation")};
  if (info.classes.empty()) fail("{} attribute 'classes': empty; it must name every class", root.place());
  require_per_channel(root, "mean", info.mean, info.channels);
  require_per_channel(root, "deviation", info.deviation, info.channels);
  if (std::ranges::min(info.deviation) <= 0) {
    fail("{} attribute 'deviation': {} is not above 0", root.place(), std::ranges::min(info.deviation));
  }
  return info;
}

std::vector<std::int32_t> read_labels(const hdf5::Dataset& dataset, const DatasetInfo& info) {
  if (dataset.shape() != Shape{info.size}) {
    fail("{}: shape {}, but there are {} images", dataset.place(), to_string(dataset.shape()), info.size);
  }
  const auto labels = dataset.read<std::int64_t>();
  const auto classes = static_cast<std::int64_t>(info.classes.size());
  const auto bad = std::ranges::find_if(labels, [=](std::int64_t label) { return label < 0 || label >= classes; });
  if (bad != labels.end()) {
    fail("{}: sample {} has label {}, but there are {} classes", dataset.place(), bad - labels.begin(), *bad, classes);
  }
  std::vector<std::int32_t> narrow(labels.size());
  std::ranges::transform(labels, narrow.begin(), [](std::int64_t label) { return static_cast<std::int32_t>(label); });
  return narrow;
}

}  // namespace

Dataset::Dataset(const std::filesystem::path& file, const std::string& split) try {
  const hdf5::Group root = hdf5::File(file).root();
  const hdf5::Group group = root.group(split);
  hdf5::Dataset images = group.dataset("images");
  info_ = read_info(root, images);
  labels_ = read_labels(group.dataset("labels"), info_);
  if (const auto offset = images.offset()) {
    images_ = std::make_unique<Images::Contiguous>(file.string(), *offset);
  } else {
    images_ = std::make_unique<Images::Chunked>(std::move(images));
  }
} catch (const Error& error) {
  fail("{}; 'annulus import' makes data files, src/data/dataset.h describes them", error.what());
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::read_image(std::size_t sample, std::span<std::uint8_t> pixels) const {
  images_->read(sample, pixels);
}

}  // namespace annulus
