#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/onnx/attributes.h"
#include "src/onnx/tensor.h"

namespace annulus {

// Constants that a file computes from the number of images in a batch, such as the coordinates that CoordConv appends
// to every image. They are computed for two batches; what differs between the two follows the batch.

// The batch of files that leave it open: one that is rarely another extent.
constexpr std::size_t kOpenBatch = 61;

// The second batch, likewise.
constexpr std::size_t other_batch(std::size_t batch) {
  return batch == 67 ? kOpenBatch : 67;
}

// A tensor that has these values for the reader's batch, and others for the second one.
HostTensor for_batches(HostTensor tensor, HostTensor other);

// The tensor for the second batch.
const HostTensor& for_other_batch(const HostTensor& tensor);

// Like evaluate(), also for the second batch if an input follows the batch.
std::optional<HostTensor> evaluate_for_batches(const std::string& op, const Attributes& attributes,
                                               const std::vector<std::shared_ptr<const HostTensor>>& inputs);

// The values for one image of a constant that repeats them for every image, along the dimension `axis`.
struct PerImage {
  HostTensor values;
  std::size_t axis;
  bool images_first;  // the order in this dimension: images of parts, or parts of images
};

// REQUIRES: the tensor follows the batch. Throws Error if the images have different values, or if the tensor does not
// repeat them along one dimension.
PerImage per_image(const HostTensor& tensor, std::size_t batch);

}  // namespace annulus
