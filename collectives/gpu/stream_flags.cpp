#include "collectives/gpu/stream_flags.h"

#include <cuda.h>

#include <array>
#include <cstdlib>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

// Signatures for single and for several operations.
using Operation = CUresult (*)(CUstream stream, CUdeviceptr flag, cuuint32_t value, unsigned flags);
using Batch = CUresult (*)(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags);

// A stream that waits for a flag occupies a hardware queue, and streams beyond the number of queues share them: the
// streams that are to end the wait, or only to read the flags, must not queue up behind it. CUDA creates 8 queues by
// default, and reads this setting when it is first called, possibly by MPI. So it is set when this module is loaded: by
// choose_gpu() (src/job/open_device.h) before MPI_Init.
[[maybe_unused]] const int most_queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

void* entry_point(const char* name) {
  constexpr unsigned kVersion = 12000;  // the interface's second version, which all current GPUs support
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    fail("this GPU's driver has no {}, which streams of several processes need to wait for each other", name);
  return function;
}

void expect_success(CUresult result) {
  if (result != CUDA_SUCCESS)
    fail(
        "this GPU's driver refused a stream memory operation (error {}), which streams of several processes need to "
        "wait for each other",
        static_cast<int>(result));
}

CUdeviceptr address_of(const std::uint32_t* flag) {
  return reinterpret_cast<CUdeviceptr>(flag);
}

void put(void* operation, cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value, unsigned flags) {
  expect_success(reinterpret_cast<Operation>(operation)(stream, address_of(flag), value, flags));
}

}  // namespace

StreamFlags::StreamFlags()
    : wait_(entry_point("cuStreamWaitValue32")),
      write_(entry_point("cuStreamWriteValue32")),
      batch_(entry_point("cuStreamBatchMemOp")) {}

void StreamFlags::wait(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value) const {
  put(wait_, stream, flag, value, CU_STREAM_WAIT_VALUE_GEQ);
}

void StreamFlags::write(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const {
  put(write_, stream, flag, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

void StreamFlags::exchange(cudaStream_t stream, std::span<std::uint32_t* const> raise,
                           std::span<const std::uint32_t* const> await, std::uint32_t value) const {
  std::array<CUstreamBatchMemOpParams, 2 * kMostFlags> operations{};
  unsigned count = 0;
  for (const std::uint32_t* flag : raise) {
    auto& write = operations.at(count++).writeValue;
    write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.address = address_of(flag);
    write.value = value;
    write.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  for (const std::uint32_t* flag : await) {
    auto& wait = operations.at(count++).waitValue;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.address = address_of(flag);
    wait.value = value;
    wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  expect_success(reinterpret_cast<Batch>(batch_)(stream, count, operations.data(), 0));
}

}  // namespace annulus::cuda
