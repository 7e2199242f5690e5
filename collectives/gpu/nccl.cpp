#include "collectives/gpu/nccl.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/gpu/gpu_sharing.h"
#include "collectives/gpu/wire_codec.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

void check(ncclResult_t result, std::source_location place = std::source_location::current()) {
  if (result != ncclSuccess)
    fail("NCCL failed in {} ({}:{}): {} ({})", place.function_name(), place.file_name(), place.line(),
         ncclGetErrorString(result), ncclGetLastError(nullptr));
}

struct Abort {
  void operator()(ncclComm_t communicator) const { ncclCommAbort(communicator); }
};
using Communicator = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, Abort>;

// Thread blocks per NCCL kernel, each of which occupies a multiprocessor that backward lacks meanwhile; an H100 has
// 132. Without a limit there may be 32. Not measured yet. NCCL_MAX_CTAS takes precedence.
constexpr int kMostBlocks = 16;

constexpr std::size_t kAligned = 256 / sizeof(float);  // chunk sizes are multiples

constexpr std::size_t kPiece = 1 << 20;  // floats that are sent in 16 bits at a time. Not measured yet

Buffer allocate(std::size_t bytes) {
  void* address = nullptr;
  check(ncclMemAlloc(&address, bytes));
  Buffer buffer(static_cast<std::byte*>(address), bytes, [](std::byte* memory) { ncclMemFree(memory); });
  cuda::zero(buffer.view());
  return buffer;
}

class Nccl final : public StreamAlgorithm {
 public:
  Nccl(const World& world, cuda::SideLane& lane, WireType wire);
  ~Nccl() override;

  void end_waits() noexcept override { communicator_.reset(); }
  void put(DeviceView values, Verb verb) override;
  Range chunk(std::size_t count) const override;
  DeviceView allocate(std::size_t bytes) override;
  std::uint64_t bytes_to_send(DeviceView values, Verb verb) const override;
  void expect_all_there() override;

 private:
  // Memory that networks and NVLink's switches access directly, without copies to NCCL's own.
  struct Registered {
    Buffer memory;
    void* handle;
  };

  void expect_exact_sums(const World& world);
  std::size_t even_share(std::size_t count) const { return count / kAligned / size_ * kAligned; }

  void put_coded(float* values, std::size_t count);
  Range coded_chunk(std::size_t count, std::size_t rank) const { return split_blocks(count, kAligned, size_, rank); }
  template <class Visit>
  void for_each_peer(const Visit& visit) const;
  void send(const std::uint16_t* coded, std::size_t count, std::size_t peer) const;
  void receive(std::uint16_t* coded, std::size_t count, std::size_t peer) const;

  const std::size_t rank_, size_;
  const WireType wire_;
  std::uint16_t *coded_ = nullptr, *arrived_ = nullptr;  // a piece, and the peers' shares of this rank's chunk
  std::vector<Registered> memory_;                       // outlives the communicator
  Communicator communicator_;
};

Nccl::Nccl(const World& world, cuda::SideLane& lane, WireType wire)
    : StreamAlgorithm(lane.stream()),
      rank_(static_cast<std::size_t>(world.rank())),
      size_(static_cast<std::size_t>(world.size())),
      wire_(wire) {
  if (const std::string shared = shared_gpu(world); !shared.empty())
    fail("NCCL does not support two ranks on one GPU: {}; use --all-reduce auto, or fewer ranks", shared);
  ncclUniqueId id{};
  world.all_or_none([&] {
    if (world.root()) check(ncclGetUniqueId(&id));
  });
  world.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  world.all_or_none([&] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = kMostBlocks;
    ncclComm_t communicator = nullptr;
    check(ncclCommInitRankConfig(&communicator, world.size(), id, world.rank(), &config));
    communicator_.reset(communicator);
  });
  if (wire_ == WireType::fp32) {
    expect_exact_sums(world);
    return;
  }
  world.all_or_none([&] {
    const auto numbers = [this](std::size_t count) {
      return reinterpret_cast<std::uint16_t*>(allocate(count * sizeof(std::uint16_t)).address);
    };
    coded_ = numbers(kPiece);
    arrived_ = numbers((size_ - 1) * coded_chunk(kPiece, 0).size());
  });
}

// Some releases of NCCL have returned wrong sums, silently and only with some protocols, which it chooses by the size
// (2.31.2 repaired the last of them). Sums of small whole numbers need no rounding, in any order.
void Nccl::expect_exact_sums(const World& world) {
  constexpr std::array<std::size_t, 4> kCounts{1, 1003, 1 << 16, 1 << 21};
  const auto value = [](std::size_t i, std::size_t rank) { return static_cast<float>((7 * i + 3 * rank) % 61); };
  const Buffer memory = annulus::allocate(kCounts.back() * sizeof(float));
  std::vector<float> values(kCounts.back());
  std::string wrong;
  for (const std::size_t count : kCounts) {
    for (std::size_t i = 0; i < count; ++i) values[i] = value(i, rank_);
    const DeviceView array = memory.view().slice(0, count * sizeof(float));
    cuda::check(cudaMemcpyAsync(array.address, values.data(), array.bytes, cudaMemcpyHostToDevice, stream()));
    put(array, Verb::all_reduce);
    cuda::check(cudaMemcpyAsync(values.data(), array.address, array.bytes, cudaMemcpyDeviceToHost, stream()));
    cuda::check(cudaStreamSynchronize(stream()));
    for (std::size_t i = 0; i < count && wrong.empty(); ++i) {
      float sum = 0;
      for (std::size_t rank = 0; rank < size_; ++rank) sum += value(i, rank);
      if (values[i] != sum)
        wrong = fmt::format("NCCL's all-reduce of {} numbers is wrong: number {} is {} instead of {}", count, i,
                            values[i], sum);
    }
  }
  world.all_or_none([&] {
    if (!wrong.empty()) fail("{}; update NCCL, or use another --all-reduce", wrong);
  });
}

// Aborting the communicator ends kernels that wait for other ranks. Otherwise all ranks destroy it together.
Nccl::~Nccl() {
  if (leave() || !communicator_) return;  // aborted
  for (const Registered& registered : memory_) ncclCommDeregister(communicator_.get(), registered.handle);
  ncclCommDestroy(communicator_.release());
}

DeviceView Nccl::allocate(std::size_t bytes) {
  Registered& registered = memory_.emplace_back(annulus::allocate(std::max<std::size_t>(bytes, 1)), nullptr);
  const DeviceView memory = registered.memory.view();
  check(ncclCommRegister(communicator_.get(), memory.address, memory.bytes, &registered.handle));
  return memory.slice(0, bytes);
}

// NCCL's reduce-scatter and all-gather need chunks of equal size, so the last rank's also has what is left over.
Range Nccl::chunk(std::size_t count) const {
  const std::size_t share = even_share(count), begin = rank_ * share;
  return {begin, rank_ + 1 == size_ ? count : begin + share};
}

void Nccl::put(DeviceView values, Verb verb) {
  const std::size_t count = values.bytes / sizeof(float);
  if (count == 0) return;
  auto* const all = reinterpret_cast<float*>(values.address);
  if (wire_ != WireType::fp32) {
    if (verb != Verb::all_reduce) fail("NCCL has no reduce-scatter or all-gather of {} messages", to_string(wire_));
    for (std::size_t begin = 0; begin < count; begin += kPiece) put_coded(all + begin, std::min(kPiece, count - begin));
    return;
  }
  if (verb == Verb::all_reduce) {
    check(ncclAllReduce(all, all, count, ncclFloat, ncclSum, communicator_.get(), stream()));
    return;
  }
  const std::size_t share = even_share(count), left_over = count - size_ * share;
  float* const own = all + rank_ * share;
  float* const rest = all + size_ * share;
  const int last = static_cast<int>(size_) - 1;
  check(ncclGroupStart());
  if (verb == Verb::reduce_scatter) {
    if (share > 0) check(ncclReduceScatter(all, own, share, ncclFloat, ncclSum, communicator_.get(), stream()));
    if (left_over > 0)
      check(ncclReduce(rest, rest, left_over, ncclFloat, ncclSum, last, communicator_.get(), stream()));
  } else {
    if (share > 0) check(ncclAllGather(own, all, share, ncclFloat, communicator_.get(), stream()));
    if (left_over > 0) check(ncclBroadcast(rest, rest, left_over, ncclFloat, last, communicator_.get(), stream()));
  }
  check(ncclGroupEnd());
}

// See nccl.h.
void Nccl::put_coded(float* values, std::size_t count) {
  const Range own = coded_chunk(count, rank_);
  const std::size_t largest = coded_chunk(kPiece, 0).size();
  for (const Range& part : {Range{0, own.begin}, Range{own.end, count}})
    cuda::encode(wire_, values + part.begin, coded_ + part.begin, part.size(), stream());
  std::uint16_t* place = arrived_;
  for_each_peer([&](std::size_t peer) {
    const Range theirs = coded_chunk(count, peer);
    send(coded_ + theirs.begin, theirs.size(), peer);
    receive(place, own.size(), peer);
    place += largest;
  });
  cuda::sum_coded(wire_, values + own.begin, arrived_, largest, size_ - 1, coded_ + own.begin, own.size(), stream());
  for_each_peer([&](std::size_t peer) {
    const Range theirs = coded_chunk(count, peer);
    send(coded_ + own.begin, own.size(), peer);
    receive(coded_ + theirs.begin, theirs.size(), peer);
  });
  cuda::decode(wire_, coded_, values, count, stream());
}

// Messages to and from all peers are under way at the same time.
template <class Visit>
void Nccl::for_each_peer(const Visit& visit) const {
  check(ncclGroupStart());
  for (std::size_t turn = 1; turn < size_; ++turn) visit((rank_ + turn) % size_);
  check(ncclGroupEnd());
}

void Nccl::send(const std::uint16_t* coded, std::size_t count, std::size_t peer) const {
  if (count > 0)
    check(ncclSend(coded, count * sizeof *coded, ncclUint8, static_cast<int>(peer), communicator_.get(), stream()));
}

void Nccl::receive(std::uint16_t* coded, std::size_t count, std::size_t peer) const {
  if (count > 0)
    check(ncclRecv(coded, count * sizeof *coded, ncclUint8, static_cast<int>(peer), communicator_.get(), stream()));
}

// NCCL chooses the algorithm, so only our own messages are counted.
std::uint64_t Nccl::bytes_to_send(DeviceView values, Verb) const {
  if (wire_ == WireType::fp32) return 0;
  const std::size_t count = values.bytes / sizeof(float);
  std::uint64_t numbers = 0;
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t piece = std::min(kPiece, count - begin), own = coded_chunk(piece, rank_).size();
    numbers += piece - own + (size_ - 1) * own;
  }
  return numbers * sizeof(std::uint16_t);
}

void Nccl::expect_all_there() {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(communicator_.get(), &state));
  if (state != ncclInProgress) check(state);
}

}  // namespace

std::unique_ptr<StreamAlgorithm> make_nccl(const World& world, cuda::SideLane& lane, WireType wire) {
  return std::make_unique<Nccl>(world, lane, wire);
}

}  // namespace annulus
