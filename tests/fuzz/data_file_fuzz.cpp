#include <algorithm>

#include "kernels/base/error.h"
#include "src/data/sample_reader.h"
#include "src/io/file_io.h"
#include "src/io/hdf5.h"
#include "tests/read_sample.h"
#include "tests/unit/data_file.h"
#include "tests/unit/temporary_folder.h"

using namespace annulus;

namespace {

constexpr std::size_t kSamples = 4, kBytes = 4096;

// A data file whose labels, offsets and image bytes are overwritten; HDF5's own structures stay intact.
class FuzzedFile {
 public:
  FuzzedFile() {
    test::DataFile data(kSamples);
    data.encode({{}, {}, {}, std::vector<std::uint8_t>(kBytes)});
    data.write(path_);
    const hdf5::Group train = hdf5::File(path_).root().group("train");
    for (const char* name : {"labels", "offsets", "bytes"}) places_.push_back(train.dataset(name).offset().value());
  }

  void read(std::span<const std::uint8_t> content) {
    const FileDescriptor file = open_to_write(path_);
    constexpr std::array<std::size_t, 3> kSizes{8 * kSamples, 8 * (kSamples + 1), kBytes};
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto part = content.first(std::min(content.size(), kSizes[i]));
      write_at(file, path_, places_[i], part);
      content = content.subspan(part.size());
    }
    const Dataset dataset({path_}, "train");
    const InputPlan plan = plan_input({.files = {}, .image = 16}, dataset.info(), Purpose::training, 1);
    SampleReader reader(dataset, plan);
    std::vector<std::uint8_t> pixels(plan.image_bytes());
    dataset.will_need({0, kSamples});
    for (std::size_t sample = 0; sample < kSamples; ++sample) {
      try {
        const auto label = static_cast<std::size_t>(test::read_sample(reader, sample, sample, pixels));
        if (label >= dataset.info().classes.size()) __builtin_trap();
      } catch (const Error&) {
      }
    }
  }

 private:
  test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "data.h5";
  std::vector<std::uint64_t> places_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static FuzzedFile file;
  file.read({data, size});
  return 0;
}
