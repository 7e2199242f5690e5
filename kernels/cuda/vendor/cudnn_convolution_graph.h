#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_graph.h"

namespace annulus::cuda {

// Ids in the graph for a pass's tensors with an address at run time: all members of ConvolutionOperands, in order. From
// kSums on, tensors are in float32.
enum Operand : std::int64_t {
  kInput = 1,
  kWeights,
  kOutput,
  kScale,
  kShift,
  kNormInput,
  kAddend,
  kNormOutput,
  kGradientOfOthers,
  kSums,
  kSquares,
  kMean,
  kInverse,
  kNormScale,
  kNormShift,
  kGradientSum,
  kNormalizedSum,
  kGradientFactor,
  kValueFactor,
  kConstant,
  kFactor,
  kFirstIntermediate
};

std::vector<Operand> operands(const ConvolutionProblem& problem);  // all in a pass; may name one twice, if is_own()

using Addresses = std::array<void*, kFirstIntermediate - 1>;  // the operands' from kInput on
inline Addresses addresses(const ConvolutionOperands& operands) {
  return std::bit_cast<Addresses>(operands);
}
std::size_t bytes(const ConvolutionProblem& problem, Operand operand);  // in device memory

// Returns cuDNN's graph for a pass. REQUIRES: the problem is sound, has no wide weights, and is not our own product's.
cudnn::Graph convolution_graph(const ConvolutionProblem& problem);

}  // namespace annulus::cuda
