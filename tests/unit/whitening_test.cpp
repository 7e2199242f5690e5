#include "src/train/whitening.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "models/zoo/zoo.h"
#include "src/data/dataset.h"
#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/random_values.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

const Task kTask{{9, 7, 3}, {0.4f, 0.5f, 0.6f}, {0.2f, 0.25f, 0.3f}, 10};

// A network whose first layer is this convolution.
Graph graph_with(const Convolution& convolution) {
  Graph graph(kTask.image);
  const Value images = graph.add("input", ImageInput{kTask.mean, kTask.stddev}, {Graph::kImages});
  const Value x = graph.add("first", convolution, {images});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("head", Dense{10}, {x}), Graph::kLabels});
  return graph;
}

}  // namespace

TEST_CASE("eigenvectors are orthogonal, and the matrix multiplies them by their values", "[whitening]") {
  constexpr std::size_t kRows = 27;
  const std::vector<float> random = test::random_values(kRows * kRows, 3);
  std::vector<double> matrix(kRows * kRows);
  for (std::size_t i = 0; i < kRows; ++i)
    for (std::size_t j = 0; j < kRows; ++j)
      for (std::size_t k = 0; k < kRows; ++k)
        matrix[i * kRows + j] +=
            static_cast<double>(random[i * kRows + k]) * static_cast<double>(random[j * kRows + k]);
  const Eigenvectors found = find_eigenvectors(matrix, kRows);
  CHECK(std::ranges::is_sorted(found.values, std::greater{}));
  const auto vector = [&](std::size_t k) { return std::span(found.vectors).subspan(k * kRows, kRows); };
  for (std::size_t k = 0; k < kRows; ++k) {
    for (std::size_t other = 0; other < kRows; ++other) {
      double product = 0;
      for (std::size_t i = 0; i < kRows; ++i) product += vector(k)[i] * vector(other)[i];
      CHECK(product == Approx(k == other ? 1 : 0).margin(1e-12));
    }
    for (std::size_t i = 0; i < kRows; ++i) {
      double product = 0;
      for (std::size_t j = 0; j < kRows; ++j) product += matrix[i * kRows + j] * vector(k)[j];
      CHECK(product == Approx(found.values[k] * vector(k)[i]).margin(1e-11 * found.values[0]));
    }
  }
}

TEST_CASE("whitened patches are uncorrelated, and half of the channels are the others' negatives", "[whitening]") {
  constexpr std::size_t kPatch = 12, kImages = 5;
  const Graph graph = graph_with({.channels = 24, .kernel = 2});
  Whitening whitening(graph, "first");
  CHECK(whitening.weight() == "first.weight");
  const auto pixels = test::random_pixels(kImages * 9 * 7 * 3, 1);
  std::vector<std::vector<double>> patches;
  for (std::size_t image = 0; image < kImages; ++image) {
    const auto own = std::span(pixels).subspan(image * 9 * 7 * 3, 9 * 7 * 3);
    whitening.add(own);
    for (std::size_t y = 0; y < 8; ++y)
      for (std::size_t x = 0; x < 6; ++x) {
        auto& patch = patches.emplace_back();
        for (std::size_t c = 0; c < 3; ++c)
          for (std::size_t i = 0; i < 4; ++i)
            patch.push_back((own[((y + i / 2) * 7 + x + i % 2) * 3 + c] / 255.0 - static_cast<double>(kTask.mean[c])) /
                            static_cast<double>(kTask.stddev[c]));
      }
  }
  const std::vector<float> weights = whitening.weights();
  REQUIRE(weights.size() == 24 * kPatch);
  for (std::size_t i = 0; i < 12 * kPatch; ++i) CHECK(weights[i] == -weights[12 * kPatch + i]);
  for (std::size_t a = 0; a < 12; ++a)
    for (std::size_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (const auto& patch : patches) {
        double one = 0, other = 0;
        for (std::size_t i = 0; i < kPatch; ++i) {
          one += patch[i] * static_cast<double>(weights[a * kPatch + i]);
          other += patch[i] * static_cast<double>(weights[b * kPatch + i]);
        }
        sum += one * other;
      }
      CHECK(sum / static_cast<double>(patches.size()) == Approx(a == b ? 1 : 0).margin(0.002));
    }
}

TEST_CASE("weights are of evenly spaced images, without augmentation", "[whitening]") {
  test::DataFile file(6);
  file.images_shape = {6, 9, 7, 3};
  file.mean = kTask.mean;
  file.stddev = kTask.stddev;
  file.images = test::random_pixels(6 * 9 * 7 * 3, 2);
  const test::TemporaryFolder folder;
  file.write(folder / "data.h5");
  const Dataset dataset({folder / "data.h5"}, "train");
  const InputPlan plan = plan_input({.files = {}, .augment = "crop-flip"}, dataset.info(), Purpose::training, 1);
  const Graph graph = graph_with({.channels = 18, .kernel = {1, 3}});
  Whitening expected(graph, "first");
  for (std::size_t image = 0; image < 6; ++image)
    expected.add(std::span(file.images).subspan(image * 9 * 7 * 3, 9 * 7 * 3));
  CHECK(whitening_weights(Whitening(graph, "first"), dataset, plan) == expected.weights());
}

TEST_CASE("only a convolution that reads the images can be whitened", "[whitening]") {
  const auto error = [](const Graph& graph, const std::string& layer) {
    return test::error_of([&] { Whitening(graph, layer); });
  };
  const Graph graph = graph_with({.channels = 24, .kernel = 2});
  CHECK(error(graph, "head") == "--whiten head: no convolution of this name reads the images; this network has first");
  CHECK(error(make_model("mlp", kTask), "fc1") ==
        "--whiten fc1: no convolution of this name reads the images; this network has none, so remove the option");
  CHECK(error(graph_with({.channels = 26, .kernel = 2}), "first") ==
        "--whiten first: has 26 channels, and whitening gives an even number up to 24; remove the option");
  CHECK(error(graph_with({.channels = 24, .kernel = 2, .dilation = 2}), "first") ==
        "--whiten first: is for a convolution without groups and dilation; remove the option");
}

}  // namespace annulus
