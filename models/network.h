#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/split.h"
#include "kernels/trace.h"
#include "models/graph.h"
#include "models/parameters.h"

namespace annulus {

// Sums over the samples of a batch.
struct LossSums {
  double loss = 0;
  double correct = 0;  // samples whose largest logit is their label's
};

// A graph planned on a device for one batch size and mode, with memory for everything that flows through it.
class Network {
 public:
  // `layouts`: the layouts that each node's parameters already have; empty where the device may choose.
  Network(Device& device, const Graph& graph, Mode mode, std::size_t batch,
          const std::vector<std::vector<TensorSpec>>& layouts);

  std::size_t batch() const { return batch_; }
  std::vector<std::vector<TensorSpec>> parameter_layouts() const;
  const TensorSpec& spec(Value value) const { return specs_[value]; }
  DeviceView value(Value value) const { return values_[value].view(); }

  void bind(const Parameters& parameters);

  // From now on each layer's forward and backward are spans of this lane; of none where it is null.
  void record_to(TraceLane* lane) { lane_ = lane; }

  // A step: load, forward, and in training backward.
  void load(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels);
  // Called before every layer, which may take seconds, with the place in the arena from which on parameters must be
  // those of this step.
  using Needed = std::function<void(std::size_t parameters_from)>;
  void forward(const Needed& needed = [](std::size_t) {});

  // Called with the number of gradients, from the arena's start, that are final. See Op::backward for the weight.
  using Ready = std::function<void(std::size_t gradients)>;
  void backward(float sample_weight, const Ready& ready);

  LossSums loss() const;  // of the last forward

 private:
  struct Step {
    std::unique_ptr<Op> op;
    // Gradients of values that several nodes read: the first writes it in place, the others to `partial`, from where
    // it is added.
    std::vector<std::pair<DeviceView, DeviceView>> additions;
    Range parameters;  // in the arena, in floats; empty where it has none
  };

  std::vector<bool> wanted_gradients() const;

  Device& device_;
  const Graph& graph_;
  Mode mode_;
  std::size_t batch_;
  std::vector<TensorSpec> specs_;  // of every value
  std::vector<Step> steps_;
  std::vector<Buffer> values_, gradients_;
  Buffer partial_[2];  // one for each input of a node
  TraceLane* lane_ = nullptr;
};

}  // namespace annulus
