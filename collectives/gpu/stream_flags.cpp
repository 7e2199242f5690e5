#include "collectives/gpu/stream_flags.h"

#include <cuda.h>

#include <cstdlib>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

// The signature of both operations.
using Operation = CUresult (*)(CUstream stream, CUdeviceptr flag, cuuint32_t value, unsigned flags);

// A stream that waits for a flag occupies one of the hardware's queues, and streams beyond the number of queues share
// them: the streams that are to end the wait, or only to read the flags, must not queue up behind it. CUDA creates 8
// queues by default, and reads this setting when it is first called, possibly by MPI. So it is set before main, when
// there are no threads yet.
[[maybe_unused]] const int most_queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

void* entry_point(const char* name) {
  constexpr unsigned kVersion = 12000;  // of the interface: the second one, which all current GPUs support
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    fail("this GPU's driver has no {}, which streams of several processes need to wait for each other", name);
  return function;
}

void put(void* operation, cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value, unsigned flags) {
  const CUresult result =
      reinterpret_cast<Operation>(operation)(stream, reinterpret_cast<CUdeviceptr>(flag), value, flags);
  if (result != CUDA_SUCCESS)
    fail(
        "this GPU's driver refused a stream memory operation (error {}), which streams of several processes need to "
        "wait for each other",
        static_cast<int>(result));
}

}  // namespace

StreamFlags::StreamFlags() : wait_(entry_point("cuStreamWaitValue32")), write_(entry_point("cuStreamWriteValue32")) {}

void StreamFlags::wait(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value) const {
  put(wait_, stream, flag, value, CU_STREAM_WAIT_VALUE_GEQ);
}

void StreamFlags::write(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const {
  put(write_, stream, flag, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

}  // namespace annulus::cuda
