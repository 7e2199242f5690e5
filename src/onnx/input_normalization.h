#pragma once

#include <string>
#include <vector>

#include "src/onnx/graph_builder.h"
#include "src/onnx/pixels.h"

namespace annulus {

// Networks that normalize images themselves. The reader computes such a normalization as the file says, and here
// decides which pixel values it is made for, so that images are not normalized twice.

struct PixelDecision {
  Pixels pixels = Pixels::normalized;
  std::string reason{};  // for the user; empty if the network does not scale images
};

// Decides by the constants that scale, shift or limit the images, between the image inputs and the first
// operation that does more. Rearrangements (of channels, dimensions, borders, sizes) may be in between, and the images
// may be given in parts. If a batch normalization is the first operation, its statistics decide.
//
// With (x - m) / s in front of everything else, pixels x are 0 to 1 if 0 <= m <= 1 and s <= 1, and 0 to 255 if m > 2 or
// s >= 20. REQUIRES: an image input has mean m and std s instead, as the reader merges them.
PixelDecision decide_pixels(const GraphBuilder& builder, Value logits);

// Returns the decision that --pixels makes. REQUIRES: not Pixels::automatic.
PixelDecision decided_by_user(Pixels pixels);

// Makes the image inputs, which expect pixels x as above, read bytes: `mean` and `stddev` are the data's, for
// Pixels::normalized.
void set_pixels(GraphBuilder& builder, Pixels pixels, const std::vector<float>& mean, const std::vector<float>& stddev);

// Whether a value is only scaled, shifted, limited or rearranged pixels. Throws nothing.
bool is_scaled_pixels(const GraphBuilder& builder, Value value);

}  // namespace annulus
