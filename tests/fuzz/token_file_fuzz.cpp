#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "src/data/sample_reader.h"
#include "src/data/token_dataset.h"
#include "src/io/file_io.h"
#include "src/io/hdf5.h"
#include "tests/read_sample.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/token_file.h"

using namespace annulus;

namespace {

constexpr std::size_t kTokens = 256, kLength = 7;

// A data file of text whose documents and tokens are overwritten; HDF5's own structures stay intact.
class FuzzedFile {
 public:
  FuzzedFile() {
    test::TokenFile(kTokens).write(path_);
    const hdf5::Group train = hdf5::File(path_).root().group("train");
    for (const char* name : {"documents", "tokens"}) places_.push_back(train.dataset(name).offset().value());
  }

  // The first byte selects the array to overwrite, the rest is its new content.
  void read(std::span<const std::uint8_t> content) {
    if (content.empty()) return;
    const std::size_t chosen = content[0] % places_.size();
    constexpr std::array<std::size_t, 2> kSizes{2 * sizeof(std::int64_t), kTokens * sizeof(std::uint16_t)};
    const auto part = content.subspan(1, std::min(content.size() - 1, kSizes[chosen]));
    const FileDescriptor file = open_to_write(path_);
    std::vector<std::uint8_t> before(part.size());
    read_at(open_to_read(path_), path_, places_[chosen], before);
    write_at(file, path_, places_[chosen], part);
    try {
      read_all();
    } catch (const Error&) {
    }
    write_at(file, path_, places_[chosen], before);
  }

 private:
  void read_all() const {
    const TokenDataset dataset({path_}, "train", kLength);
    const InputPlan plan = plan_input({}, dataset.info(), Purpose::training, 1);
    SampleReader reader(dataset, plan);
    std::vector<std::uint8_t> window(plan.image_bytes());
    dataset.will_need({0, dataset.info().size});
    for (std::size_t sample = 0; sample < dataset.info().size; ++sample) {
      try {
        test::read_sample(reader, sample, sample, window);
        for (std::size_t i = 0; i <= kLength; ++i) {
          std::int32_t token;
          std::memcpy(&token, window.data() + i * sizeof token, sizeof token);
          if (token < 0 || static_cast<std::uint64_t>(token) >= dataset.info().vocabulary) __builtin_trap();
        }
      } catch (const Error&) {
      }
    }
  }

  test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "text.h5";
  std::vector<std::uint64_t> places_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static FuzzedFile file;
  file.read({data, size});
  return 0;
}
