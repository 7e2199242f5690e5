// Exceptions of the threads that read samples: none may end the process.
#include <catch2/catch.hpp>
#include <new>
#include <stdexcept>

#include "src/data/loader.h"

namespace annulus {
namespace {

constexpr std::size_t kImages = 32, kBatch = 4;

// Images of which one cannot be read, for a reason that is no Error: reading it throws `Exception`.
template <typename Exception>
class BadImage final : public Samples {
 public:
  explicit BadImage(const Exception& exception) : exception_(exception) {
    info_ = {.size = kImages, .height = 2, .width = 2, .channels = 1, .classes = {"a"}, .mean = {0.5f}, .stddev = {1}};
  }

  std::int32_t label(std::size_t) const override { return 0; }
  void read_image(std::size_t sample, std::span<std::uint8_t>) const override {
    if (sample == 0) throw exception_;
  }
  void read_encoded(std::size_t, std::vector<std::uint8_t>&) const override {}
  std::string place(std::size_t) const override { return "nowhere"; }

 private:
  Exception exception_;
};

// Reads an epoch until it fails.
template <typename Exception>
void expect_failure(const Exception& exception, bool skip_bad, std::size_t workers) {
  const BadImage<Exception> images(exception);
  InputPlan input = plan_input({}, images.info(), Purpose::training, 1);
  input.skip_bad = skip_bad;
  input.workers = workers;
  Loader loader(images, input, {.seed = 1, .global_batch = kBatch, .start = {}, .end_epoch = 1});
  const auto read_all = [&loader] {
    for (std::size_t step = 0; step < kImages / kBatch; ++step) loader.next();
  };
  CHECK_THROWS_AS(read_all(), Exception);
  CHECK_THROWS_AS(loader.next(), Exception);
}

}  // namespace

TEST_CASE("any exception of a loader's thread reaches the caller", "[loader]") {
  const bool skip_bad = GENERATE(false, true);
  const std::size_t workers = GENERATE(std::size_t{1}, 3);
  expect_failure(std::bad_alloc(), skip_bad, workers);
  expect_failure(std::runtime_error("damaged"), skip_bad, workers);
}

}  // namespace annulus
