#include "src/train/whitening.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/base/error.h"
#include "src/data/sample_reader.h"

namespace annulus {
namespace {

constexpr double kEpsilon = 5e-4;  // added to eigenvalues

// Makes matrix[p][q] 0 by a rotation, which also turns the rows of `vectors`.
void rotate(std::vector<double>& matrix, std::vector<double>& vectors, std::size_t rows, std::size_t p, std::size_t q) {
  const double element = matrix[p * rows + q];
  if (element == 0) return;
  const double theta = (matrix[q * rows + q] - matrix[p * rows + p]) / (2 * element);
  const double tangent = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double cosine = 1 / std::sqrt(tangent * tangent + 1), sine = tangent * cosine;
  const auto turn = [&](double& one, double& other) {
    const double before = one;
    one = cosine * before - sine * other;
    other = sine * before + cosine * other;
  };
  for (std::size_t k = 0; k < rows; ++k) turn(matrix[k * rows + p], matrix[k * rows + q]);
  for (std::size_t k = 0; k < rows; ++k) turn(matrix[p * rows + k], matrix[q * rows + k]);
  for (std::size_t k = 0; k < rows; ++k) turn(vectors[p * rows + k], vectors[q * rows + k]);
}

double off_diagonal(const std::vector<double>& matrix, std::size_t rows) {
  double sum = 0;
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < row; ++column) sum += std::pow(matrix[row * rows + column], 2);
  return sum;
}

const Node& layer_named(const Graph& graph, const std::string& layer) {
  const auto reads_images = [&](const Node& node) {
    return std::holds_alternative<Convolution>(node.operation) && Graph::has_node(node.inputs[0]) &&
           std::holds_alternative<ImageInput>(graph.node(node.inputs[0]).operation);
  };
  std::string first;
  for (const Node& node : graph.nodes()) {
    if (!reads_images(node)) continue;
    if (node.name == layer) return node;
    first = node.name;
  }
  fail("--whiten {}: no convolution of this name reads the images; {}", layer,
       first.empty() ? "this network has none, so remove the option" : fmt::format("this network has {}", first));
}

}  // namespace

Eigenvectors find_eigenvectors(std::vector<double> matrix, std::size_t rows) {
  constexpr int kMostSweeps = 50;  // ten are enough for a few hundred rows
  constexpr double kNegligible = 1e-30;
  std::vector<double> vectors(rows * rows);
  for (std::size_t row = 0; row < rows; ++row) vectors[row * rows + row] = 1;
  const double size = std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0);
  for (int sweep = 0; sweep < kMostSweeps && off_diagonal(matrix, rows) > kNegligible * size; ++sweep)
    for (std::size_t p = 0; p < rows; ++p)
      for (std::size_t q = p + 1; q < rows; ++q) rotate(matrix, vectors, rows, p, q);
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t row) { return matrix[row * rows + row]; });
  Eigenvectors found;
  for (const std::size_t row : order) {
    found.values.push_back(matrix[row * rows + row]);
    const auto begin = vectors.begin() + static_cast<std::ptrdiff_t>(row * rows);
    found.vectors.insert(found.vectors.end(), begin, begin + static_cast<std::ptrdiff_t>(rows));
  }
  return found;
}

Whitening::Whitening(const Graph& graph, const std::string& layer) {
  const Node& node = layer_named(graph, layer);
  const auto& convolution = std::get<Convolution>(node.operation);
  const auto& input = std::get<ImageInput>(graph.node(node.inputs[0]).operation);
  weight_ = parameter_name(node, "weight");
  image_ = graph.image();
  mean_ = input.mean;
  stddev_ = input.stddev;
  kernel_ = convolution.kernel;
  channels_ = convolution.channels;
  patch_ = image_.channels * kernel_.area();
  if (convolution.groups > 1 || convolution.dilation != Extent(1))
    fail("--whiten {}: is for a convolution without groups and dilation; remove the option", layer);
  if (channels_ % 2 != 0 || channels_ > 2 * patch_)
    fail("--whiten {}: has {} channels, and whitening gives an even number up to {}; remove the option", layer,
         channels_, 2 * patch_);
  moments_.resize(patch_ * patch_);
  normalized_.resize(image_.channels * image_.height * image_.width);
}

void Whitening::add(std::span<const std::uint8_t> pixels) {
  const std::size_t height = image_.height, width = image_.width, area = height * width;
  for (std::size_t c = 0; c < image_.channels; ++c)
    for (std::size_t i = 0; i < area; ++i)
      normalized_[c * area + i] = (static_cast<float>(pixels[i * image_.channels + c]) / 255 - mean_[c]) / stddev_[c];
  const std::size_t rows = height - kernel_.height + 1, columns = width - kernel_.width + 1;
  // Returns the first pixel that this number in a patch has.
  const auto first_pixel = [&](std::size_t number) {
    const std::size_t in_plane = number % kernel_.area();
    return normalized_.data() + number / kernel_.area() * area + in_plane / kernel_.width * width +
           in_plane % kernel_.width;
  };
  for (std::size_t i = 0; i < patch_; ++i)
    for (std::size_t j = i; j < patch_; ++j) {
      const float *one = first_pixel(i), *other = first_pixel(j);
      for (std::size_t row = 0; row < rows; ++row, one += width, other += width)
        moments_[i * patch_ + j] += static_cast<double>(std::inner_product(one, one + columns, other, 0.0f));
    }
  patches_ += rows * columns;
}

std::vector<float> Whitening::weights() const {
  std::vector<double> moments(moments_.size());
  for (std::size_t i = 0; i < patch_; ++i)
    for (std::size_t j = i; j < patch_; ++j)
      moments[i * patch_ + j] = moments[j * patch_ + i] = moments_[i * patch_ + j] / static_cast<double>(patches_);
  const Eigenvectors found = find_eigenvectors(std::move(moments), patch_);
  std::vector<float> weights;
  for (const double sign : {1.0, -1.0})
    for (std::size_t k = 0; k < channels_ / 2; ++k) {
      const double factor = sign / std::sqrt(std::max(found.values[k], 0.0) + kEpsilon);
      for (std::size_t i = 0; i < patch_; ++i)
        weights.push_back(static_cast<float>(factor * found.vectors[k * patch_ + i]));
    }
  return weights;
}

std::vector<float> whitening_weights(Whitening whitening, const Samples& training, InputPlan input) {
  input.augmentation = {};
  SampleReader reader(training, input);
  std::vector<std::uint8_t> pixels(input.image_bytes());
  std::vector<float> targets(training.info().targets());
  const std::size_t images = std::min(kWhiteningImages, training.info().size);
  std::size_t read = 0;
  for (std::size_t i = 0; i < images; ++i) {
    std::size_t sample = i * training.info().size / images;
    std::uint64_t key = 0;
    std::int32_t label = 0;
    bool good = true;
    reader.read({{&sample, 1}, {&key, 1}, pixels, {&label, 1}, targets},
                [&](std::size_t, std::size_t, const Error&) { return good = false; });
    if (!good) continue;
    whitening.add(pixels);
    ++read;
  }
  if (read == 0) fail("--whiten: all of {} training images are bad", images);
  return whitening.weights();
}

}  // namespace annulus
