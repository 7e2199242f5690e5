// Compares the zoo's networks with PyTorch (tests/data/make_reference.py describes the files).

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "src/io/hdf5.h"
#include "tests/test_file.h"
#include "tests/unit/formula.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

struct Reference {
  explicit Reference(const std::string& model)
      : file(test::test_file("data/reference_" + model + ".h5")), root(file.root()) {
    const auto images_set = root.dataset("images");
    shape = images_set.shape();
    for (const auto value : images_set.read<std::int64_t>()) images.push_back(static_cast<std::uint8_t>(value));
    for (const auto value : root.dataset("labels").read<std::int64_t>())
      labels.push_back(static_cast<std::int32_t>(value));
    for (const auto value : root.dataset("keys").read<std::int64_t>()) keys.push_back(static_cast<std::int32_t>(value));
    task = {{shape[1], shape[2], shape[3]}, images_set.floats("mean"), images_set.floats("deviation"), 10};
  }

  std::vector<float> formula(const std::string& group, const std::string& name, std::size_t size) const {
    return test::formula(root.group(group).dataset(name), size);
  }

  hdf5::File file;
  hdf5::Group root;
  Shape shape;
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels, keys;
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

void check_gradient(const Reference& reference, const std::string& name, const std::vector<float>& ours) {
  INFO(name);
  const auto set = reference.root.group("gradients").dataset(name);
  const auto expected = set.read<float>();
  const std::size_t stride = set.integer("stride");
  const double expected_norm = set.floats("norm")[0];
  // A bias before a batch norm, for example, has a gradient of zero apart from rounding.
  const double tolerance = reference.root.dataset("tolerance").read<float>()[0];
  const double allowed = tolerance * std::max(expected_norm, 1e-2);
  CHECK(norm(ours) == Approx(expected_norm).margin(10 * allowed));
  const double sum = std::accumulate(ours.begin(), ours.end(), 0.0);
  CHECK(sum == Approx(set.floats("sum")[0]).margin(allowed * std::sqrt(static_cast<double>(ours.size()))));
  REQUIRE(expected.size() == (ours.size() + stride - 1) / stride);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(ours[i * stride]) - static_cast<double>(expected[i])));
  CHECK(worst <= allowed);
}

// The model with fewer units in its widest dense layers, whose weights would fill a gigabyte.
Graph narrowed(const std::string& name, const Task& task) {
  constexpr std::size_t kWide = 4096, kNarrowed = 48;
  const Graph whole = make_model(name, task);
  Graph graph(whole.image());
  for (Node node : whole.nodes()) {
    if (auto* dense = std::get_if<Dense>(&node.operation); dense != nullptr && dense->units == kWide)
      dense->units = kNarrowed;
    graph.add(node.name, node.operation, node.inputs);
  }
  return graph;
}

// Sets the parameters that the group names, either all trained or all others, to its values.
void write_parameters(const Reference& reference, const std::string& group, Model& model, bool trained) {
  Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.all()) {
    if (p.trained() != trained || p.role == Role::metric) continue;
    std::size_t size = 1;
    for (const auto extent : reference.root.group(group).dataset(p.name).read<std::int64_t>())
      size *= static_cast<std::size_t>(extent);
    REQUIRE(elements(p.spec.shape) == size);
    model.device().write(reference.formula(group, p.name, size), p.spec, parameters.weight(p));
  }
}

// The results of the last forward.
void check_logits(const Model& model, Device& device, const Network& network, const std::vector<float>& expected) {
  const Value logits = model.graph().nodes().back().inputs[0];
  std::vector<float> ours(elements(network.spec(logits).shape));
  device.read(network.spec(logits), network.value(logits), ours);
  REQUIRE(ours.size() == expected.size());
  const double largest = std::abs(*std::ranges::max_element(expected, {}, [](float v) { return std::abs(v); }));
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK(ours[i] == Approx(expected[i]).margin(1e-4 * largest));
}

void check_against_pytorch(const std::string& name, int threads) {
  INFO(name << ", " << threads << " threads");
  const Reference reference(name);
  const auto device = test::make_device(threads);
  const std::size_t batch = reference.labels.size();
  Model model(*device, narrowed(name, reference.task), Mode::training, batch);
  Parameters& parameters = model.parameters();
  write_parameters(reference, "parameters", model, true);
  const auto trained = std::ranges::count_if(parameters.all(), &Parameter::trained);
  REQUIRE(static_cast<std::size_t>(trained) == reference.root.group("parameters").names().size());

  Network& network = model.network(Mode::training, batch);
  network.load(reference.images, {reference.labels}, reference.keys);
  network.forward();
  CHECK(network.loss().loss / static_cast<double>(batch) ==
        Approx(reference.root.dataset("loss").read<float>()[0]).epsilon(1e-5));
  check_logits(model, *device, network, reference.root.dataset("logits").read<float>());

  std::size_t ready = 0;
  network.backward(1.0f / static_cast<float>(batch), [&](std::size_t gradients, const std::optional<Mark>&) {
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

}  // namespace

TEST_CASE("loss and gradients match PyTorch's") {
  check_against_pytorch(GENERATE("mlp", "lenet", "cnn", "resnet20", "vit_tiny"), GENERATE(1, 2));
}

// An emulated GPU would take minutes.
TEST_CASE("loss and gradients of large networks match PyTorch's", "[large]") {
  check_against_pytorch(GENERATE("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet56", "alexnet",
                                 "vgg16", "inception_v3", "densenet121", "mobilenet_v3_large", "vit_s_16", "vit_b_16"),
                        2);
}

TEST_CASE("inference with batch norm matches PyTorch's", "[large]") {
  const std::string name = GENERATE("resnet18", "inception_v3", "mobilenet_v3_large");
  INFO(name);
  const Reference reference(name);
  const auto device = test::make_device(2);
  const std::size_t batch = reference.labels.size();
  Model model(*device, make_model(name, reference.task), Mode::inference, batch);
  write_parameters(reference, "parameters", model, true);
  write_parameters(reference, "inference", model, false);
  Network& network = model.network(Mode::inference, batch);
  network.load(reference.images, {reference.labels});
  network.forward();
  check_logits(model, *device, network, reference.root.group("inference").dataset("logits").read<float>());
}

TEST_CASE("gradients of a batch's shares sum to the gradient of the batch") {
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
                 {std::span(reference.labels).subspan(begin, count)});
    network.forward();
    network.backward(1.0f / static_cast<float>(batch));
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

TEST_CASE("without batch norm, inference equals the forward pass of training") {
  const Reference reference("cnn");
  const auto device = test::make_device(1);
  Model model(*device, make_model("cnn", reference.task), Mode::training, 4);
  model.parameters().initialize(3);
  Network& training = model.network(Mode::training, 4);
  Network& inference = model.network(Mode::inference, 4);
  for (Network* network : {&training, &inference}) {
    network->load(reference.images, {reference.labels});
    network->forward();
  }
  CHECK(training.loss().loss == Approx(inference.loss().loss).epsilon(1e-6));
  CHECK(training.loss().measure == inference.loss().measure);
}

TEST_CASE("backward may be recorded together with forward, and marks show when gradients became final") {
  const Reference reference("cnn");
  const auto device = test::make_device(1);
  Model model(*device, make_model("cnn", reference.task), Mode::training, 4);
  model.parameters().initialize(3);
  const DeviceView arena = model.parameters().gradients();
  Network& network = model.network(Mode::training, 4);
  network.load(reference.images, {reference.labels});
  const auto gradients = [&] { return test::floats_of(*device, arena); };
  network.forward();
  network.backward(0.25f);
  const std::vector<float> expected = gradients();
  Network::Stops stops;
  for (const Parameter& p : model.parameters().updated()) stops.marks.push_back((p.offset + p.bytes) / sizeof(float));
  model.stop_at(stops);
  const auto ignored = [](std::size_t) {};
  for (int repeated = 0; repeated < 4; ++repeated) {
    device->zero(arena);
    std::vector<std::size_t> reported;
    std::vector<double> since;
    network.forward(ignored, 0.25f);
    network.backward(0.25f, [&](std::size_t count, const std::optional<Mark>& mark) {
      reported.push_back(count);
      if (mark) since.push_back(device->seconds(*mark));
    });
    CHECK(gradients() == expected);
    CHECK(std::ranges::is_sorted(reported));
    CHECK(reported.size() > 2);
    CHECK(reported.back() == arena.bytes / sizeof(float));
    CHECK(since.size() == (device->info().records ? reported.size() - 1 : 0));
    CHECK(std::ranges::is_sorted(since));
  }
  network.forward(ignored, 0.5f);
  network.backward(0.5f);
  const std::vector<float> twice = gradients();
  for (std::size_t i = 0; i < twice.size(); ++i) REQUIRE(twice[i] == Approx(2 * expected[i]).margin(1e-30));
}

TEST_CASE("only training with dropout requires sample keys") {
  const auto device = test::make_device(1);
  Graph graph({2, 2, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  x = graph.add("dense", Dense{3}, {graph.add("dropout", Dropout{0.5f}, {x, Graph::kSampleKeys})});
  graph.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  Model model(*device, graph, Mode::training, 2);
  const std::vector<std::uint8_t> images(8, 200);
  const std::vector<std::int32_t> labels{0, 1}, keys{3, 4, 5};
  CHECK_THROWS_WITH(model.network(Mode::training, 2).load(images, {labels}), Catch::Contains("a key for each of 2"));
  CHECK_THROWS_WITH(model.network(Mode::training, 2).load(images, {labels}, keys), Catch::Contains("there are 3"));
  CHECK_NOTHROW(model.network(Mode::training, 2).load(images, {labels}, std::span(keys).first(2)));
  CHECK_NOTHROW(model.network(Mode::inference, 2).load(images, {labels}));
}

TEST_CASE("unknown models and too small images are refused") {
  const Task task{{4, 4, 1}, {0.5f}, {0.5f}, 10};
  CHECK_THROWS_WITH(make_model("lenet5", task), Catch::Contains("lenet5") && Catch::Contains("resnet20"));
  CHECK_THROWS_WITH(make_model("lenet", task), Catch::Contains("conv2") && Catch::Contains("5x5"));
}

}  // namespace annulus
