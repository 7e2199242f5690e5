// Compares a GPT with PyTorch (tests/data/make_reference.py describes the file).

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "src/io/hdf5.h"
#include "src/step/optimizer.h"
#include "tests/test_file.h"
#include "tests/unit/formula.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

struct Reference {
  hdf5::File file{test::test_file("data/reference_gpt-tiny.h5")};
  hdf5::Group root = file.root();
  hdf5::Dataset stored = root.dataset("windows");
  std::size_t batch = stored.shape()[0], length = stored.shape()[1] - 1;
  std::size_t vocabulary = stored.integer("vocabulary");
  std::vector<std::int32_t> windows = read();

  std::vector<std::int32_t> read() const {
    std::vector<std::int32_t> tokens;
    for (const std::int64_t token : stored.read<std::int64_t>()) tokens.push_back(static_cast<std::int32_t>(token));
    return tokens;
  }
};

// A GPT with the reference's weights.
struct Gpt {
  Gpt(const Reference& reference, int threads)
      : windows(reference.windows),
        batch(reference.batch),
        device(test::make_device(threads)),
        model(*device, make_model("gpt-tiny", token_task({reference.length, reference.vocabulary})), Mode::training,
              batch) {
    for (const Parameter& p : model.parameters().all()) {
      if (!p.trained()) continue;
      const auto values = test::formula(reference.root.group("parameters").dataset(p.name), elements(p.spec.shape));
      device->write(values, p.spec, model.parameters().weight(p));
    }
    model.parameters().weights_changed();
    take_tokens(windows, {reference.length}, reference.vocabulary, 0, embedded);
    index = device->allocate(embedded.size() * sizeof(std::int32_t));
    device->upload(std::as_bytes(std::span(embedded)), index.view());
  }

  // Computes all gradients. Returns the loss.
  double step() {
    Network& network = model.network(Mode::training, batch);
    test::load_windows(network, windows);
    network.forward();
    network.backward(1 / static_cast<float>(batch));
    const auto& gradient = *network.embedding_gradient();
    device->add_rows(gradient.rows, gradient.type, index.view(), gradient.width, gradient.table);
    return network.loss().loss / static_cast<double>(batch);
  }

  std::vector<std::int32_t> windows, embedded;
  std::size_t batch;
  std::unique_ptr<Device> device;
  Model model;
  Buffer index;
};

}  // namespace

TEST_CASE("a GPT's gradients match PyTorch's") {
  const Reference reference;
  Gpt gpt(reference, GENERATE(1, 2));
  CHECK(gpt.step() == Approx(reference.root.dataset("losses").read<float>()[0]).epsilon(1e-6));
  const Parameters& parameters = gpt.model.parameters();
  std::size_t compared = 0;
  for (const Parameter& p : parameters.all()) {
    if (!p.trained()) continue;
    INFO(p.name);
    ++compared;
    const auto set = reference.root.group("gradients").dataset(p.name);
    const auto expected = set.read<float>();
    const auto ours = test::read(*gpt.device, p, parameters.gradient(p));
    const std::size_t stride = set.integer("stride");
    const double size = set.floats("norm")[0], allowed = 2e-5 * std::max(size, 1e-2);
    CHECK(test::norm(ours) == Approx(size).margin(allowed));
    REQUIRE(expected.size() == (ours.size() + stride - 1) / stride);
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(ours[i * stride]) - static_cast<double>(expected[i])));
    CHECK(worst <= allowed);
  }
  CHECK(compared == reference.root.group("gradients").names().size());
}

TEST_CASE("the losses of 50 steps of a GPT match PyTorch's") {
  const Reference reference;
  Gpt gpt(reference, 2);
  const hdf5::Dataset losses = reference.root.dataset("losses");
  Parameters& parameters = gpt.model.parameters();
  Optimizer optimizer(*gpt.device, parameters, Sgd{.momentum = losses.floats("momentum")[0], .weight_decay = 0},
                      losses.floats("rate")[0]);
  for (const float expected : losses.read<float>()) {
    CHECK(gpt.step() == Approx(expected).epsilon(1e-4));
    optimizer.begin_step();
    optimizer.update({0, parameters.gradients().bytes / sizeof(float)});
  }
}

}  // namespace annulus
