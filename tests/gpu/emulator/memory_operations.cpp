#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>

#include "tests/gpu/emulator/cuda.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated {
namespace {

bool holds(std::uint32_t word, std::uint32_t value, unsigned flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::int32_t>(word - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return word == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (word & value) != 0;
    default:
      return ~(word | value) != 0;
  }
}

// First yields, then sleeps for increasing times: the word may belong to another process.
void wait_until(std::atomic_ref<std::uint32_t> word, std::uint32_t value, unsigned flags) {
  using namespace std::chrono_literals;
  constexpr int kYields = 100;
  auto pause = 5us;
  for (int i = 0; !holds(word.load(std::memory_order_acquire), value, flags); ++i) {
    if (i < kYields) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, decltype(pause)(200us));
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::uint32_t* word_at(CUdeviceptr address) {
  auto* const word = reinterpret_cast<std::uint32_t*>(address);
  if (address % alignof(std::uint32_t) != 0 || !device_reaches(word, sizeof(*word))) return nullptr;
  return accessible(word);
}

CUresult result_of(cudaError_t result) {
  return static_cast<CUresult>(result);  // they have the same numbers
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  std::uint32_t* const word = word_at(address);
  const unsigned condition = flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
  if (word == nullptr || condition > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  return result_of(enqueue(
      stream,
      [=] {
        wait_until(std::atomic_ref(*word), value, condition);
        stream_races::await(word, value);
      },
      Kind::wait));
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  std::uint32_t* const word = word_at(address);
  if (word == nullptr || flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  return result_of(enqueue(stream, [=] {
    stream_races::signal(word, std::atomic_ref(*word).load(), value);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }));
}

// As the driver does, it queues them in their order.
CUresult several(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  constexpr unsigned kTooMany = 256;
  if (count >= kTooMany || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (const CUstreamBatchMemOpParams& next : std::span(operations, count)) {
    const auto& wait = next.waitValue;
    const auto& write = next.writeValue;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (next.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32)
      result = wait_value(stream, wait.address, wait.value, wait.flags);
    if (next.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
      result = write_value(stream, write.address, write.value, write.flags);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulated

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* status) {
  const std::string_view name = symbol;
  *function = nullptr;
  if (name == "cuStreamWaitValue32" || name == "cuStreamWaitValue32_v2")
    *function = reinterpret_cast<void*>(&emulated::wait_value);
  if (name == "cuStreamWriteValue32" || name == "cuStreamWriteValue32_v2")
    *function = reinterpret_cast<void*>(&emulated::write_value);
  if (name == "cuStreamBatchMemOp" || name == "cuStreamBatchMemOp_v2")
    *function = reinterpret_cast<void*>(&emulated::several);
  const bool found = *function != nullptr;
  if (status != nullptr) *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return found ? cudaSuccess : emulated::remember(cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPoint(symbol, function, flags, status);
}
