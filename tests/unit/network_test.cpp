// The zoo's networks against PyTorch (tests/data/make_reference.py says what the files hold).

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/random.h"
#include "models/model.h"
#include "models/zoo.h"
#include "src/data/hdf5.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

struct Reference {
  explicit Reference(const std::string& model)
      : file(std::string(ANNULUS_TEST_DATA) + "/reference_" + model + ".h5"), root(file.root()) {
    const auto images_set = root.dataset("images");
    shape = images_set.shape();
    for (const auto value : images_set.read<std::int64_t>()) images.push_back(static_cast<std::uint8_t>(value));
    for (const auto value : root.dataset("labels").read<std::int64_t>())
      labels.push_back(static_cast<std::int32_t>(value));
    task = {{shape[1], shape[2], shape[3]}, images_set.floats("mean"), images_set.floats("deviation"), 10};
  }

  std::vector<float> parameter(const std::string& name, std::size_t size) const {
    const auto set = root.group("parameters").dataset(name);
    const std::uint64_t index = set.integer("index");
    const float center = set.floats("center")[0], bound = set.floats("bound")[0];
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i)
      values[i] = center + bound * (2 * static_cast<float>(mix((index << 32) + i) >> 40) * 0x1p-24f - 1);
    return values;
  }

  hdf5::File file;
  hdf5::Group root;
  Shape shape;
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  Task task;
};

std::vector<float> read(Device& device, const Parameter& p, DeviceView view) {
  std::vector<float> values(elements(p.spec.shape));
  device.read(p.spec, view, values);
  return values;
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const double v : values) squares += v * v;
  return std::sqrt(squares);
}

// What float32 sums over a few thousand products may be off, relative to the tensor's norm.
constexpr double kTolerance = 2e-5;

void check_gradient(const Reference& reference, const std::string& name, const std::vector<float>& ours) {
  INFO(name);
  const auto set = reference.root.group("gradients").dataset(name);
  const auto expected = set.read<float>();
  const std::size_t stride = set.integer("stride");
  const double expected_norm = set.floats("norm")[0];
  // A bias before a batch norm, say, has a gradient of zero but for rounding.
  const double allowed = kTolerance * std::max(expected_norm, 1e-2);
  CHECK(norm(ours) == Approx(expected_norm).margin(10 * allowed));
  REQUIRE(expected.size() == (ours.size() + stride - 1) / stride);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(ours[i * stride]) - static_cast<double>(expected[i])));
  CHECK(worst <= allowed);
}

}  // namespace

TEST_CASE("a network's loss and gradients are PyTorch's") {
  const std::string name = GENERATE("mlp", "lenet", "cnn", "resnet20");
  const int threads = GENERATE(1, 2);
  INFO(name << ", " << threads << " threads");
  const Reference reference(name);
  const auto device = test::make_device(threads);
  const std::size_t batch = reference.labels.size();
  Model model(*device, make_model(name, reference.task), Mode::training, batch);
  Parameters& parameters = model.parameters();
  parameters.initialize(1);
  std::size_t compared = 0;
  for (const Parameter& p : parameters.all())
    if (p.trained()) {
      std::size_t size = 1;
      for (const auto extent : reference.root.group("parameters").dataset(p.name).read<std::int64_t>())
        size *= static_cast<std::size_t>(extent);
      REQUIRE(elements(p.spec.shape) == size);
      device->write(reference.parameter(p.name, elements(p.spec.shape)), p.spec, parameters.weight(p));
      ++compared;
    }
  REQUIRE(compared == reference.root.group("parameters").names().size());

  Network& network = model.network(Mode::training, batch);
  network.load(reference.images, reference.labels);
  network.forward();
  CHECK(network.loss().loss / static_cast<double>(batch) ==
        Approx(reference.root.dataset("loss").read<float>()[0]).epsilon(1e-5));

  std::size_t ready = 0;
  network.backward(1.0f / static_cast<float>(batch), [&](std::size_t gradients) {
    CHECK(gradients > ready);
    ready = gradients;
  });
  CHECK(ready == parameters.gradients().bytes / sizeof(float));

  for (const Parameter& p : parameters.all()) {
    const auto gradient = read(*device, p, parameters.gradient(p));
    if (p.trained()) check_gradient(reference, p.name, gradient);
    const bool known = reference.root.has("statistics") && reference.root.group("statistics").has(p.name);
    if (p.role == Role::statistic && known) {
      INFO(p.name);
      const auto expected = reference.root.group("statistics").dataset(p.name).read<float>();
      for (std::size_t c = 0; c < expected.size(); ++c)
        CHECK(gradient[c] == Approx(expected[c]).epsilon(1e-4).margin(1e-5));
    }
  }
}

TEST_CASE("gradients of the shares of a batch add up to those of the batch") {
  const Reference reference("lenet");
  const auto device = test::make_device(1);
  const std::size_t batch = reference.labels.size();
  Model model(*device, make_model("lenet", reference.task), Mode::training, batch);
  Parameters& parameters = model.parameters();
  parameters.initialize(7);

  const auto gradients_of = [&](std::size_t begin, std::size_t count) {
    Network& network = model.network(Mode::training, count);
    const std::size_t image = reference.images.size() / batch;
    network.load(std::span(reference.images).subspan(begin * image, count * image),
                 std::span(reference.labels).subspan(begin, count));
    network.forward();
    network.backward(1.0f / static_cast<float>(batch), [](std::size_t) {});
    std::vector<float> all;
    for (const Parameter& p : parameters.all()) {
      const auto values = read(*device, p, parameters.gradient(p));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };

  const auto whole = gradients_of(0, batch);
  const auto first = gradients_of(0, 1);
  const auto rest = gradients_of(1, batch - 1);
  for (std::size_t i = 0; i < whole.size(); ++i) REQUIRE(first[i] + rest[i] == Approx(whole[i]).margin(2e-5));
}

TEST_CASE("inference is training's forward pass where there is no batch norm") {
  const Reference reference("cnn");
  const auto device = test::make_device(1);
  Model model(*device, make_model("cnn", reference.task), Mode::training, 4);
  model.parameters().initialize(3);
  Network& training = model.network(Mode::training, 4);
  Network& inference = model.network(Mode::inference, 4);
  for (Network* network : {&training, &inference}) {
    network->load(reference.images, reference.labels);
    network->forward();
  }
  CHECK(training.loss().loss == Approx(inference.loss().loss).epsilon(1e-6));
  CHECK(training.loss().correct == inference.loss().correct);
}

TEST_CASE("ResNet-50 has as many parameters and operations as everybody's") {
  const Graph graph = make_model("resnet50", {{224, 224, 3}, {0, 0, 0}, {1, 1, 1}, 1000});
  std::size_t trained = 0;
  std::uint64_t operations = 0;
  for (const Node& node : graph.nodes()) {
    const auto inputs = graph.input_shapes(node, 1);
    for (const ParameterDeclaration& p : parameters(node.operation, inputs))
      if (p.role == Role::weight || p.role == Role::offset) trained += elements(p.shape);
    operations += flops(node.operation, inputs);
  }
  CHECK(trained == 25'557'032);
  CHECK(operations == 2 * 4'089'184'256);  // multiply-adds of convolutions and the dense layer
}

TEST_CASE("an unknown model and images that are too small are named") {
  const Task task{{4, 4, 1}, {0.5f}, {0.5f}, 10};
  CHECK_THROWS_WITH(make_model("lenet5", task), Catch::Contains("lenet5") && Catch::Contains("resnet20"));
  CHECK_THROWS_WITH(make_model("lenet", task), Catch::Contains("conv2") && Catch::Contains("5x5"));
}

}  // namespace annulus
