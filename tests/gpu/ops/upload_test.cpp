#include "kernels/cuda/runtime/upload.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/gpu/ops/gpu.h"

using namespace annulus;

namespace {

constexpr std::size_t kBytes = 100'000;  // such arrays are staged

struct Uploads {
  cuda::Stream lane = cuda::make_stream();
  Buffer memory = cuda::allocate_device(kBytes);
  cuda::Uploader uploader{};

  // Uploads all bytes of `host`, and returns the value that all have on the GPU.
  int upload(const std::vector<std::byte>& host) {
    uploader.upload(host, memory.view(), lane.get());
    std::vector<std::byte> found(host.size());
    cuda::check(cudaMemcpyAsync(found.data(), memory.view().address, found.size(), cudaMemcpyDeviceToHost, lane.get()));
    cuda::check(cudaStreamSynchronize(lane.get()));
    CHECK(std::ranges::count(found, found[0]) == static_cast<std::ptrdiff_t>(found.size()));
    return std::to_integer<int>(found[0]);
  }
};

std::vector<std::byte> bytes(int value, std::size_t size = kBytes) {
  return std::vector(size, std::byte(value));
}

}  // namespace

TEST_CASE("a prefetched array is not copied from the host again") {
  Uploads uploads;
  std::vector<std::byte> host = bytes(1);
  for (int step = 1; step <= 5; ++step) {
    std::ranges::fill(host, std::byte(step));
    uploads.uploader.prefetch(host);
    std::ranges::fill(host, std::byte(77));  // against the rules, so that another copy would be seen
    CHECK(uploads.upload(host) == step);
  }
  CHECK(uploads.upload(host) == 77);
}

TEST_CASE("another upload drops the prefetched array") {
  Uploads uploads;
  std::vector<std::byte> host = bytes(1);
  const std::vector<std::byte> other = bytes(2);
  uploads.uploader.prefetch(host);
  CHECK(uploads.upload(other) == 2);
  CHECK(uploads.upload(host) == 1);
  uploads.uploader.prefetch(std::span(host).first(kBytes - 1));
  CHECK(uploads.upload(host) == 1);
  uploads.uploader.prefetch(host);
  uploads.uploader.prefetch(other);
  std::ranges::fill(host, std::byte(3));
  CHECK(uploads.upload(host) == 3);
  CHECK(uploads.upload(other) == 2);
}

TEST_CASE("small uploads leave a prefetched array in place") {
  Uploads uploads;
  std::vector<std::byte> host = bytes(1);
  uploads.uploader.prefetch(host);
  uploads.uploader.prefetch(bytes(5, 100));
  std::ranges::fill(host, std::byte(77));
  CHECK(uploads.upload(bytes(6, 100)) == 6);
  CHECK(uploads.upload(host) == 1);
}
