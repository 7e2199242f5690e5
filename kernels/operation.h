#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/operations/attention.h"
#include "kernels/operations/computed_weights.h"
#include "kernels/operations/convolution.h"
#include "kernels/operations/dense.h"
#include "kernels/operations/elementwise.h"
#include "kernels/operations/image_input.h"
#include "kernels/operations/loss.h"
#include "kernels/operations/norm.h"
#include "kernels/operations/pool.h"
#include "kernels/operations/shaping.h"
#include "kernels/operations/tokens.h"

namespace annulus {

// A network's operations, as plain data. An operation determines the output's shape and the parameters from the inputs'
// shapes; how it is computed is up to the device (kernels/device.h). Every operation has
//
//   kName                 the name for the user: "convolution"
//   output_shape(inputs)  throws Error if the inputs do not fit it
//   parameters(inputs)    if it has any
//   flops(inputs)         per forward pass, a multiply-add counts as 2; if it is not bound by memory
//
// To add an operation, write a struct in kernels/operations/, add it here, and give each device a file that computes
// it.
using Operation = std::variant<ImageInput, Convolution, TransposedConvolution, Dense, Linear, MatrixProduct, Attention,
                               CachedAttention, MaxPool, AveragePool, AdaptiveAveragePool, Mean, BatchNorm, LayerNorm,
                               GroupNorm, LocalResponseNorm, Relu, Activation, PRelu, Add, Arithmetic, Maximum, Softmax,
                               Dropout, Concat, Reshape, Transpose, Slice, Gather, Pad, Expand, Resize, Learned,
                               Constant, TokenEmbedding, PositionEmbedding, ComputedWeights, SoftmaxCrossEntropy,
                               BinaryCrossEntropy, MultiLabelCrossEntropy, MeanSquaredError, LanguageModelHead>;

std::string_view name(const Operation& operation);  // "convolution"; for an activation, the function's name

// Both throw Error if the inputs do not fit the operation.
Shape output_shape(const Operation& operation, const Shapes& inputs);
std::vector<ParameterDeclaration> parameters(const Operation& operation, const Shapes& inputs);

// 0 for operations that are bound by memory.
std::uint64_t flops(const Operation& operation, const Shapes& inputs);

}  // namespace annulus
