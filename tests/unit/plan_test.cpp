// oneDNN's plans for the zoo's models: none may be a reference implementation. The choice depends on the processor and
// on ONEDNN_MAX_CPU_ISA, which is read once in a process (tests/CMakeLists.txt).

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "kernels/cpu/plan/dnnl_pass.h"
#include "models/rewrites/fusion.h"
#include "models/rewrites/unused_gradients.h"
#include "models/zoo/zoo.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kClasses = 10;
constexpr std::size_t kBatches[] = {1, 7, 64};

using Layouts = std::vector<std::vector<TensorSpec>>;

// Images of the model's default size if planning for them is quick, else the smallest square ones that it accepts.
Graph graph_of(const ZooEntry& entry) {
  if (entry.reads_tokens()) return entry.make(token_task({8, kClasses}));
  const auto of_image = [&](const ImageShape& image) { return entry.make(neutral_task(image, kClasses)); };
  if (entry.image.height <= 32) return of_image(entry.image);
  for (std::size_t side = 1;; ++side) try {
      return of_image({side, side, 3});
    } catch (const Error&) {
      REQUIRE(side < entry.image.height);
    }
}

// An inference network, whose layouts are chosen for one batch size, is planned again for a smaller last batch, for
// which oneDNN may reorder the weights with its generic code.
bool is_slow(const std::string& name, bool of_another_batch) {
  return cpu::is_reference(name) && !(of_another_batch && name == "simple:any");
}

// Plans every node, with the parameters' layouts if there are any, and checks the implementations. Returns the
// parameters' layouts.
Layouts check_plans(Device& device, const Graph& graph, Mode mode, std::size_t batch, const Layouts& fixed,
                    bool of_another_batch = false) {
  const auto shapes = graph.shapes(batch);
  std::vector<TensorSpec> specs{
      device.plain(shapes[Graph::kImages], graph.reads_tokens() ? DataType::i32 : DataType::u8),
      device.plain(shapes[Graph::kLabels], DataType::i32), device.plain(shapes[Graph::kSampleKeys], DataType::i32)};
  Layouts layouts;
  for (const Node& node : graph.nodes()) {
    std::vector<TensorSpec> inputs;
    for (const Value input : node.inputs) inputs.push_back(specs[input]);
    const auto op =
        device.plan(node.operation, inputs, mode, fixed.empty() ? std::vector<TensorSpec>{} : fixed[layouts.size()]);
    for (const std::string& name : op->info().implementations) {
      INFO("layer " << node.name << (mode == Mode::training ? ", training" : ", inference") << ", batch " << batch);
      CAPTURE(name);
      CHECK_FALSE(is_slow(name, of_another_batch));
    }
    specs.push_back(op->output());
    layouts.push_back(op->parameters());
  }
  return layouts;
}

}  // namespace

TEST_CASE("oneDNN uses no reference implementation for any model") {
  if (test::on_gpu()) return;
  const auto device = test::make_device(2);
  for (const ZooEntry& entry : zoo()) {
    const Graph graph = prune_unused_gradients(fuse(graph_of(entry)));
    for (const Mode laid_out_for : {Mode::training, Mode::inference})
      for (const std::size_t laid_out_batch : kBatches) {
        CAPTURE(entry.name, laid_out_for == Mode::training, laid_out_batch);
        const Layouts layouts = check_plans(*device, graph, laid_out_for, laid_out_batch, {});
        for (const std::size_t batch : kBatches) {
          const bool infers_only = laid_out_for == Mode::inference;
          check_plans(*device, graph, Mode::inference, batch, layouts, infers_only && batch != laid_out_batch);
          if (!infers_only) check_plans(*device, graph, Mode::training, batch, layouts);
        }
      }
  }
}

}  // namespace annulus
