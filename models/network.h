#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "models/activation_plan.h"
#include "models/graph.h"
#include "models/parameters.h"

namespace annulus {

// Sums over the samples of a batch.
struct LossSums {
  double loss = 0;
  double correct = 0;        // samples whose largest logit is their label's
  double among_largest = 0;  // samples whose label's is among the largest SoftmaxCrossEntropy::kTop
};

// Memory for what flows through networks that never run at the same time: they share it.
class ActivationArena {
 public:
  explicit ActivationArena(Device& device) : device_(device) {}

  // At least so much. What was given out before, and was too small, stays valid.
  DeviceView of(std::size_t bytes);

 private:
  Device& device_;
  std::vector<Buffer> buffers_;
};

// A graph planned on a device for one batch size and mode.
class Network {
 public:
  using Planned = std::function<void()>;  // called after each operation that has been planned, which may take seconds

  // `layouts`: the layouts that each node's parameters already have; empty where the device may choose.
  Network(
      Device& device, const Graph& graph, Mode mode, std::size_t batch,
      const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned = [] {});

  std::size_t batch() const { return batch_; }
  std::vector<std::vector<TensorSpec>> parameter_layouts() const;
  const TensorSpec& spec(Value value) const { return specs_[value]; }
  // Once bound. After forward() it holds the images, the labels, the logits and the loss; of the others what a later
  // layer has not written over.
  DeviceView value(Value value) const;
  const ActivationPlan& dataflow() const { return dataflow_; }

  void bind(const Parameters& parameters, ActivationArena& memory);

  // From now on each layer's forward and backward are spans of this lane; of none where it is null.
  void record_to(TraceLane* lane) { lane_ = lane; }

  // For what needs sums over all ranks in the middle of a pass; without it this rank is the only one.
  void sum_over_ranks(const SumOverRanks& sum);

  // Where the caller of forward() and backward() wants to be called back, as places in the arena. Devices that record
  // work do so in stretches of layers between these; others call back at every layer.
  struct Stops {
    std::vector<std::size_t> forward, backward;  // ascending
  };
  void stop_at(const Stops& stops);

  // A step: load, forward, and in training backward. Keys are Graph::kSampleKeys: only training with dropout wants
  // them, and throws Error where there are none.
  void load(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels,
            std::span<const std::int32_t> keys = {});
  // Called before every layer, or every stretch of layers, with the place in the arena from which on parameters must be
  // those of this step.
  using Needed = std::function<void(std::size_t parameters_from)>;
  void forward(const Needed& needed = [](std::size_t) {});

  // Called with the number of gradients, from the arena's start, that are final. See Op::backward for the weight.
  using Ready = std::function<void(std::size_t gradients)>;
  void backward(float sample_weight, const Ready& ready);

  LossSums loss() const;  // of the last forward

 private:
  struct Addition {
    DeviceView partial, gradient;
    DataType type;
  };
  struct Step {
    std::unique_ptr<Op> op;
    std::vector<Addition> additions;  // after its backward
    Range parameters;                 // in the arena, in floats; empty where it has none
  };

  // Layers that run together, in forward's order, and what they need or make.
  struct Stretch {
    Range steps;
    std::size_t
        place;  // in the arena: forward needs parameters from here on, backward's gradients are final up to here
    bool recordable = true;
    std::unique_ptr<Recording> recording;
    bool done_before = false;
  };

  std::vector<Step> plan_steps(const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned);
  std::vector<const Op*> ops() const;
  void bind_step(std::size_t node, const Parameters& parameters);
  DeviceView view(const ActivationPlan::Piece& piece) const { return dataflow_.view(piece, flow_); }
  bool recordable(std::size_t step) const { return device_.records() && !steps_[step].op->sums_over_ranks(); }
  void plan_forward(std::span<const std::size_t> stops);
  void plan_backward(std::span<const std::size_t> stops);
  template <class Work>
  void run(Stretch& stretch, const Work& work);
  void forward_layers(const Range& steps);
  void backward_layers(const Range& steps, float sample_weight);

  Device& device_;
  const Graph& graph_;
  Mode mode_;
  std::size_t batch_;
  bool wants_keys_;
  std::vector<TensorSpec> specs_;  // of every value
  std::vector<Step> steps_;
  ActivationPlan dataflow_;
  std::vector<Buffer> outside_;              // the values that no node makes
  DeviceView flow_;                          // where everything else lies that flows through it
  std::vector<Stretch> forward_, backward_;  // in the order in which they run
  float recorded_weight_ = 0;                // of samples, in backward_'s recordings
  TraceLane* lane_ = nullptr;
};

}  // namespace annulus
