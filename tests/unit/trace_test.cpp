#include "kernels/base/trace.h"

#include <catch2/catch.hpp>
#include <string>

#include "models/network/model.h"
#include "models/zoo/zoo.h"

namespace annulus {

TEST_CASE("spans nest like scopes and carry their step") {
  TraceLane lane(10);
  lane.record(true, 3);
  const double before = now_seconds();
  {
    const TraceSpan outer(&lane, "outer", 7, before);
    const TraceSpan inner(&lane, "inner");
  }
  REQUIRE(lane.spans().size() == 2);
  const auto& [inner, outer] = std::tie(lane.spans()[0], lane.spans()[1]);
  CHECK(inner.name == "inner");
  CHECK(inner.number == TraceLane::kNone);
  CHECK(inner.step == 3);
  CHECK(outer.number == 7);
  CHECK(outer.begin == before);
  CHECK(outer.begin <= inner.begin);
  CHECK(inner.begin <= inner.end);
  CHECK(inner.end <= outer.end);
}

TEST_CASE("spans without a recording lane do nothing") {
  TraceLane lane(10);
  { const TraceSpan span(nullptr, "nothing"); }
  { const TraceSpan span(&lane, "nothing"); }
  lane.record(true);
  lane.record(false);
  { const TraceSpan span(&lane, "nothing"); }
  CHECK(lane.spans().empty());
}

TEST_CASE("a lane does not grow; spans that do not fit are counted") {
  TraceLane lane(3);
  lane.record(true);
  const auto* memory = lane.spans().data();
  for (int i = 0; i < 5; ++i) const TraceSpan span(&lane, "span", i);
  CHECK(lane.spans().data() == memory);
  REQUIRE(lane.spans().size() == 3);
  CHECK(lane.spans()[2].number == 2);
  CHECK(lane.dropped() == 2);
}

TEST_CASE("each layer has a forward span, and a backward span if it has a backward pass") {
  const auto device = make_device("cpu", 1);
  const Task task{{28, 28, 1}, {0.5f}, {0.25f}, 10};
  Model model(*device, make_model("mlp", task), Mode::training, 4);
  TraceLane lane(100);
  lane.record(true);
  model.record_to(&lane);
  Network& network = model.network(Mode::training, 2);  // planned after the lane was given
  network.forward();
  network.backward(0.5f);
  model.network(Mode::inference, 2).forward();  // evaluation is no step

  std::vector<std::string> expected, found;
  const auto& nodes = model.graph().nodes();
  for (const Node& node : nodes) expected.push_back(node.name);
  expected.push_back("forward");
  for (std::size_t i = nodes.size(); i-- > 1;) expected.push_back(nodes[i].name);  // but for the input
  expected.push_back("backward");
  for (const auto& span : lane.spans()) found.emplace_back(span.name);
  CHECK(found == expected);
}

}  // namespace annulus
