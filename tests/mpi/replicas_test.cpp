#include "src/step/replicas.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>

#include "kernels/base/error.h"
#include "models/zoo/zoo.h"

using namespace annulus;

namespace {

struct Replica {
  Replica() { model.parameters().initialize(3); }

  std::string complaint(const World& world) {
    try {
      check_replicas(world, model, optimizer, "after step 17");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  Model model{*device, make_model("mlp", {{4, 4, 1}, {0.5f}, {0.25f}, 4}), Mode::training, 2};
  Optimizer optimizer{*device, model.parameters(), Sgd{.momentum = 0.9f}, 0.1f};
};

void flip_a_bit(DeviceView view) {
  view.address[view.bytes / 2] ^= std::byte{1};
}

}  // namespace

TEST_CASE("equal replicas pass") {
  const World world;
  Replica replica;
  CHECK(replica.complaint(world).empty());
  flip_a_bit(replica.model.parameters().weights());  // the same on every rank
  CHECK(replica.complaint(world).empty());
}

TEST_CASE("a flipped bit on one rank is detected, and every rank names it") {
  const World world;
  if (world.size() == 1) return;
  const bool in_velocity = GENERATE(false, true);
  for (int wrong = 0; wrong < world.size(); ++wrong) {
    Replica replica;
    if (world.rank() == wrong)
      flip_a_bit(in_velocity ? replica.optimizer.state(0) : replica.model.parameters().weights());
    CAPTURE(wrong, in_velocity);
    const std::string complaint = replica.complaint(world);
    CHECK_THAT(complaint, Catch::Contains(in_velocity ? "first in the optimizer's state of " : "first in ") &&
                              Catch::Contains("after step 17"));
    if (world.size() == 2)  // there is no majority
      CHECK_THAT(complaint,
                 Catch::Matches(".*: ranks 0 on .*, 1 on .* differ, and no majority shows which is right;.*"));
    else
      CHECK_THAT(complaint, Catch::Matches(fmt::format(".*: rank {} on .* \\(core [0-9]+\\) does not have .*", wrong)));
  }
}

TEST_CASE("if several replicas are wrong, each is named, and the majority is right") {
  const World world;
  if (world.size() < 5) return;
  Replica replica;
  if (world.rank() == 0) flip_a_bit(replica.model.parameters().weights());
  if (world.rank() == 2) flip_a_bit(replica.optimizer.state(0));
  CHECK_THAT(replica.complaint(world), Catch::Matches(".*: ranks 0 on .*, 2 on .* do not have .*"));
}

TEST_CASE("a non-finite parameter is detected") {
  const World world;
  Replica replica;
  const Parameter& bias = replica.model.parameters().all()[3];
  std::vector<float> values(elements(bias.spec.shape), 1.0f);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  replica.device->write(values, bias.spec, replica.model.parameters().weight(bias));
  CHECK_THAT(replica.complaint(world), Catch::Contains(bias.name) && Catch::Contains("after step 17"));
}
