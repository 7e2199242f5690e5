#include "src/compiled_features.h"

// A macro that the compiler defines as 1 stays a name if it is not defined.
#define ANNULUS_TEXT(macro) #macro
#define ANNULUS_HAS(macro) (ANNULUS_TEXT(macro)[0] == '1')

namespace annulus {

constexpr ProcessorFeatures kFeatures{
    .popcnt = ANNULUS_HAS(__POPCNT__),
    .sse4_2 = ANNULUS_HAS(__SSE4_2__),
    .avx = ANNULUS_HAS(__AVX__),
    .avx2 = ANNULUS_HAS(__AVX2__),
    .fma = ANNULUS_HAS(__FMA__),
    .bmi = ANNULUS_HAS(__BMI__),
    .bmi2 = ANNULUS_HAS(__BMI2__),
    .avx512f = ANNULUS_HAS(__AVX512F__),
    .avx512cd = ANNULUS_HAS(__AVX512CD__),
    .avx512dq = ANNULUS_HAS(__AVX512DQ__),
    .avx512bw = ANNULUS_HAS(__AVX512BW__),
    .avx512vl = ANNULUS_HAS(__AVX512VL__),
    .avx512vnni = ANNULUS_HAS(__AVX512VNNI__),
    .avx512vbmi = ANNULUS_HAS(__AVX512VBMI__),
    .avx512bf16 = ANNULUS_HAS(__AVX512BF16__),
    .avxvnni = ANNULUS_HAS(__AVXVNNI__),
};

const ProcessorFeatures kCompiledFeatures = kFeatures;  // a constant: no code runs for it at start

}  // namespace annulus
