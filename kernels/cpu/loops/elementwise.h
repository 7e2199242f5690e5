#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"

// Element-wise kernels over float32 arrays. They do not depend on a tensor's layout: padding is zero and stays zero.
namespace annulus::cpu {

void copy(std::span<const float> from, std::span<float> to);                        // does nothing if they are the same
void add(std::span<const float> from, std::span<float> to);                         // to += from
void sum(std::span<const float> a, std::span<const float> b, std::span<float> to);  // to = a + b
void relu(std::span<const float> from, std::span<float> to);                        // to = max(0, from)
void relu_backward(std::span<const float> output, std::span<const float> output_gradient,
                   std::span<float> input_gradient);  // may be in place
void move_towards(std::span<const float> goal, std::span<float> values,
                  float share);  // values += share (goal - values)
// to[index[i]] += from[i] for rows of `width` floats, in the order of i. Rows with a negative index are skipped.
void add_rows(std::span<const float> from, std::span<const std::int32_t> index, std::size_t width, std::span<float> to);
void scale(std::span<const float> from, float factor, std::span<float> to);       // to = factor from
void add_scaled(std::span<const float> from, float factor, std::span<float> to);  // to += factor from

}  // namespace annulus::cpu
