#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// A part of an arena, in floats, that a single thread block processes.
struct Chunk {
  static constexpr std::size_t kFloats = 16384;
  std::size_t begin, end;
};

inline void append_chunks(const Range& range, std::vector<Chunk>& chunks) {
  for (std::size_t at = range.begin; at < range.end; at += Chunk::kFloats)
    chunks.push_back({at, std::min(at + Chunk::kFloats, range.end)});
}

// Copies a plan's constants to device memory.
template <class Element>
Buffer on_device(const std::vector<Element>& elements) {
  return to_device(std::as_bytes(std::span(elements)));
}

}  // namespace annulus::cuda
