#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"

// Multiplies bf16 matrices on tile registers (AMX), with sums in float32. REQUIRES: used_instruction_set()
// is amx.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include <immintrin.h>

namespace annulus::cpu::tiles {

using Bf16 = std::uint16_t;

constexpr std::size_t kTile = 16;          // rows in a tile register, and float32 in a row
constexpr std::size_t kPairs = 2 * kTile;  // bf16 in a tile row
constexpr std::size_t kTileSize = kTile * kPairs;
constexpr std::size_t kBlock = 2 * kTile;  // rows and columns that are computed at a time, in four registers

struct alignas(kCacheLine) Block {
  float at[kBlock][kBlock];
};

// Rows in bf16, cut into tiles with 16 rows and 32 columns. The instruction multiplies two tiles: rows from the left
// factor, and pairs of rows from the right factor. A tile with pairs is a transposed tile with rows, as 16 x 16 pairs:
// so pairs for X^T are X's tiles, each transposed.
class Tiles {
 public:
  // `rows` and `columns`: in blocks.
  Tiles(HostArray<Bf16>& memory, std::size_t rows, std::size_t columns)
      : values_(memory.first(rows * columns * 2 * kTileSize).data()), across_(columns) {}

  Bf16* at(std::size_t tile_row, std::size_t column) const {
    return values_ + (tile_row * across_ + column) * kTileSize;
  }
  std::size_t across() const { return across_; }

 private:
  Bf16* values_;
  std::size_t across_;
};

struct alignas(kCacheLine) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures the calling thread's tile registers; oneDNN configures them for its own kernels.
class TileRegisters {
 public:
  TileRegisters() { _tile_loadconfig(&kConfiguration); }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  static constexpr TileConfiguration kConfiguration{};
};

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const Block& block) {
  constexpr std::size_t kRow = sizeof block.at[0];
  _tile_loadd(0, &block.at[0][0], kRow);
  _tile_loadd(1, &block.at[0][kTile], kRow);
  _tile_loadd(2, &block.at[kTile][0], kRow);
  _tile_loadd(3, &block.at[kTile][kTile], kRow);
}

// Multiplies block row i in `a` by block column j in `b`, which is stored transposed: the tiles in `inner`, which
// are added to the block unless they are the first.
inline void multiply(const Tiles& a, std::size_t i, const Tiles& b, std::size_t j, Block& block, const Range& inner) {
  const Bf16 *const a0 = a.at(2 * i, 0), *const a1 = a.at(2 * i + 1, 0);
  const Bf16 *const b0 = b.at(2 * j, 0), *const b1 = b.at(2 * j + 1, 0);
  constexpr std::size_t kTileRow = kPairs * sizeof(Bf16), kBlockRow = kBlock * sizeof(float);
  asm volatile("" ::: "memory");  // the macros do not say that they read memory
  if (inner.begin == 0)
    zero_sums();
  else
    load_sums(block);
  for (std::size_t k = inner.begin * kTileSize; k < inner.end * kTileSize; k += kTileSize) {
    _tile_loadd(4, a0 + k, kTileRow);
    _tile_loadd(6, b0 + k, kTileRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1 + k, kTileRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a1 + k, kTileRow);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, &block.at[0][0], kBlockRow);
  _tile_stored(1, &block.at[0][kTile], kBlockRow);
  _tile_stored(2, &block.at[kTile][0], kBlockRow);
  _tile_stored(3, &block.at[kTile][kTile], kBlockRow);
}

inline void multiply(const Tiles& a, std::size_t i, const Tiles& b, std::size_t j, Block& block) {
  multiply(a, i, b, j, block, {0, a.across()});
}

typedef std::int32_t Ints __attribute__((vector_size(kCacheLine)));
typedef std::int64_t Longs __attribute__((vector_size(kCacheLine)));
typedef std::int16_t Shorts __attribute__((vector_size(kCacheLine)));

// Interleave elements within each 16 bytes.
inline Ints low_pairs(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
inline Ints high_pairs(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
inline Ints low_quads(Ints a, Ints b) {
  return reinterpret_cast<Ints>(
      __builtin_shufflevector(reinterpret_cast<Longs>(a), reinterpret_cast<Longs>(b), 0, 8, 2, 10, 4, 12, 6, 14));
}
inline Ints high_quads(Ints a, Ints b) {
  return reinterpret_cast<Ints>(
      __builtin_shufflevector(reinterpret_cast<Longs>(a), reinterpret_cast<Longs>(b), 1, 9, 3, 11, 5, 13, 7, 15));
}

// The first and third 16 bytes of both, and the second and fourth.
inline Ints even_parts(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline Ints odd_parts(Ints a, Ints b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// Transposes 16 x 16 4-byte values. Row lengths in bytes.
inline void transpose(const void* from, std::size_t from_row, void* to, std::size_t to_row) {
  Ints r[kTile], t[kTile];
  for (std::size_t i = 0; i < kTile; ++i)
    r[i] = reinterpret_cast<Ints>(_mm512_loadu_si512(static_cast<const std::byte*>(from) + i * from_row));
  for (std::size_t i = 0; i < kTile; i += 2) {
    t[i] = low_pairs(r[i], r[i + 1]);
    t[i + 1] = high_pairs(r[i], r[i + 1]);
  }
  for (std::size_t i = 0; i < kTile; i += 4) {
    r[i] = low_quads(t[i], t[i + 2]);
    r[i + 1] = high_quads(t[i], t[i + 2]);
    r[i + 2] = low_quads(t[i + 1], t[i + 3]);
    r[i + 3] = high_quads(t[i + 1], t[i + 3]);
  }
  for (std::size_t c = 0; c < 4; ++c) {
    t[c] = even_parts(r[c], r[4 + c]);
    t[4 + c] = even_parts(r[8 + c], r[12 + c]);
    t[8 + c] = odd_parts(r[c], r[4 + c]);
    t[12 + c] = odd_parts(r[8 + c], r[12 + c]);
  }
  for (std::size_t c = 0; c < 4; ++c) {
    r[c] = even_parts(t[c], t[4 + c]);
    r[4 + c] = even_parts(t[8 + c], t[12 + c]);
    r[8 + c] = odd_parts(t[c], t[4 + c]);
    r[12 + c] = odd_parts(t[8 + c], t[12 + c]);
  }
  for (std::size_t i = 0; i < kTile; ++i)
    _mm512_storeu_si512(static_cast<std::byte*>(to) + i * to_row, reinterpret_cast<__m512i>(r[i]));
}

inline void transpose(const Block& from, Block& to) {
  for (std::size_t i = 0; i < kBlock; i += kTile)
    for (std::size_t j = 0; j < kBlock; j += kTile)
      transpose(&from.at[i][j], sizeof from.at[0], &to.at[j][i], sizeof to.at[0]);
}

inline Shorts rounded(const float* low, const float* high) {
  return reinterpret_cast<Shorts>(_mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low)));
}

// Stores block (i, j) as tiles.
inline void store_rows(const Block& block, const Tiles& to, std::size_t i, std::size_t j) {
  for (std::size_t half = 0; half < 2; ++half)
    for (std::size_t row = 0; row < kTile; ++row) {
      const float* const values = block.at[half * kTile + row];
      _mm512_store_si512(to.at(2 * i + half, j) + row * kPairs,
                         reinterpret_cast<__m512i>(rounded(values, values + kTile)));
    }
}

// Stores block (i, j) as pairs for the transposed matrix; `rows` has the block's tiles.
inline void store_pairs_of_transpose(const Tiles& rows, const Tiles& to, std::size_t i, std::size_t j) {
  for (std::size_t half = 0; half < 2; ++half)
    transpose(rows.at(2 * i + half, j), kPairs * sizeof(Bf16), to.at(2 * i + half, j), kPairs * sizeof(Bf16));
}

// Stores block (i, j) as pairs, for a right factor.
inline void store_pairs(const Block& block, const Tiles& to, std::size_t i, std::size_t j) {
  for (std::size_t half = 0; half < 2; ++half)
    for (std::size_t row = 0; row < kTile; ++row) {
      const Shorts both = rounded(block.at[2 * row] + half * kTile, block.at[2 * row + 1] + half * kTile);
      const Shorts interleaved =
          __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                  26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      _mm512_store_si512(to.at(2 * j + half, i) + row * kPairs, reinterpret_cast<__m512i>(interleaved));
    }
}

}  // namespace annulus::cpu::tiles

#pragma GCC pop_options
