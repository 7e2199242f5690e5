#include "kernels/precision.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::array<std::pair<const char*, Precision>, 4> kNames{
    {{"fp32", Precision::fp32}, {"tf32", Precision::tf32}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}}};

}  // namespace

Precision parse_precision(const std::string& name) {
  for (const auto& [known, precision] : kNames)
    if (name == known) return precision;
  fail("unknown precision \"{}\" (fp32, tf32, bf16 or fp16)", name);
}

std::string to_string(Precision precision) {
  return std::ranges::find(kNames, precision, &std::pair<const char*, Precision>::second)->first;
}

DataType value_type(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return DataType::bf16;
    case Precision::fp16:
      return DataType::f16;
    default:
      return DataType::f32;
  }
}

}  // namespace annulus
