#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/extent.h"
#include "models/graph/graph.h"
#include "src/data/input_plan.h"
#include "src/data/samples.h"

namespace annulus {

// A symmetric matrix's eigenvalues, in descending order, and an eigenvector of length 1 for each, row by row.
struct Eigenvectors {
  std::vector<double> values, vectors;
};

// `matrix`: {rows, rows}, symmetric. By Jacobi's rotations, for up to a few hundred rows.
Eigenvectors find_eigenvectors(std::vector<double> matrix, std::size_t rows);

// Computes weights for a convolution that reads the images: the eigenvectors of its patches' second moments, each
// divided by the root of its eigenvalue, and then the negatives (Jordan, "94% on CIFAR-10 in 3.29 seconds on a single
// GPU", 2024, arXiv 2404.00498, section 3.2). The outputs are uncorrelated, with a mean square of about 1.
class Whitening {
 public:
  // Throws Error unless `layer` is a convolution that reads normalized images, and has an even number of channels, at
  // most two for each number in a patch. With fewer channels, the largest eigenvalues count.
  Whitening(const Graph& graph, const std::string& layer);

  const std::string& weight() const { return weight_; }  // the parameter's name

  void add(std::span<const std::uint8_t> pixels);  // an image
  // In the parameter's shape. REQUIRES: an image was added.
  std::vector<float> weights() const;

 private:
  std::string weight_;
  ImageShape image_;
  std::vector<float> mean_, stddev_;
  Extent kernel_ = 1;
  std::size_t channels_, patch_;  // outputs; numbers in a patch
  std::vector<double> moments_;   // {patch, patch}: sums of products, for columns from the row's on
  std::size_t patches_ = 0;
  std::vector<float> normalized_;  // the last image, {channels, height, width}
};

// Returns the weights for up to kWhiteningImages training images, evenly spaced, as they are without augmentation.
// Skips bad samples.
constexpr std::size_t kWhiteningImages = 2000;
std::vector<float> whitening_weights(Whitening whitening, const Samples& training, InputPlan input);

}  // namespace annulus
