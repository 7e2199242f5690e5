#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/onnx/attributes.h"
#include "src/onnx/tensor.h"

namespace annulus {

// Constants that a file computes from the batch size, such as the coordinates that CoordConv appends to every image.
// They are computed for two batches; what differs between the two follows the batch.

// The batch for files that leave it open: a number that is rarely another extent.
constexpr std::size_t kOpenBatch = 61;

// Returns the second batch, also a rare extent.
constexpr std::size_t other_batch(std::size_t batch) {
  return batch == 67 ? kOpenBatch : 67;
}

// Returns a tensor with these values for the reader's batch, and others for the second batch.
HostTensor for_batches(HostTensor tensor, HostTensor other);

// The tensor for the second batch.
const HostTensor& for_other_batch(const HostTensor& tensor);

// Like evaluate(), also for the second batch if an input follows the batch.
std::optional<HostTensor> evaluate_for_batches(const std::string& op, const Attributes& attributes,
                                               const std::vector<std::shared_ptr<const HostTensor>>& inputs);

// A constant's values for a single image, if it repeats them for every image along the dimension `axis`.
struct PerImage {
  HostTensor values;
  std::size_t axis;
  bool images_first;  // the order in this dimension: images of parts, or parts of images
};

// REQUIRES: the tensor follows the batch. Throws Error if the images have different values, or if the tensor does not
// repeat them along a single dimension.
PerImage per_image(const HostTensor& tensor, std::size_t batch);

}  // namespace annulus
