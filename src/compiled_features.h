#pragma once

namespace annulus {

// Extensions of x86-64 that a compiler uses with -march=native.
struct ProcessorFeatures {
  bool popcnt, sse4_2, avx, avx2, fma, bmi, bmi2, avx512f, avx512cd, avx512dq, avx512bw, avx512vl, avx512vnni,
      avx512vbmi, avx512bf16, avxvnni;
};

// The extensions that the program was compiled for.
extern const ProcessorFeatures kCompiledFeatures;

}  // namespace annulus
