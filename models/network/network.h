#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/mixed_label.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "kernels/neighbour_fusion.h"
#include "models/graph/graph.h"
#include "models/memory/activation_plan.h"
#include "models/network/shared_layouts.h"
#include "models/parameters/parameters.h"
#include "models/parameters/shared_gradients.h"

namespace annulus {

// Sums over a batch's samples, as the graph's loss defines them (kernels/operations/loss.h).
struct LossSums {
  double loss = 0;
  double measure = 0;        // hits, exact matches, or absolute errors
  double among_largest = 0;  // samples whose label is among the SoftmaxCrossEntropy::kTop largest logits; or none
  double targets = 0;        // shares of tokens that are not missing, see LanguageModelHead; or none
};

// Activation memory shared by networks that never run at the same time.
class ActivationArena {
 public:
  explicit ActivationArena(Device& device) : device_(device) {}

  // Returns at least `bytes` of memory. Memory returned earlier, which was too small, stays valid.
  DeviceView of(std::size_t bytes);
  std::size_t bytes() const;

 private:
  Device& device_;
  std::vector<Buffer> buffers_;
};

// Exchanges activations and their gradients with a pipeline stage's neighbours. Stages at the pipeline's ends have a
// single neighbour.
struct StageLinks {
  using Exchange = std::function<void(DeviceView)>;

  Exchange receive_input, send_output;                    // in forward
  Exchange receive_output_gradient, send_input_gradient;  // in backward
};

// A graph planned on a device for a batch size and mode; or a range of nodes, as a pipeline stage
// (models/network/stages.h).
class Network {
 public:
  using Planned = std::function<void()>;  // called after each planned operation; planning may take seconds

  // `layouts`: the layouts that each node's parameters already have; empty if the device may choose. `stage`: all nodes
  // if empty.
  Network(
      Device& device, const Graph& graph, Mode mode, std::size_t batch,
      const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned = [] {},
      const std::optional<Range>& stage = {});
  Network(const Network&) = delete;  // operations keep a pointer to it

  std::size_t batch() const { return batch_; }
  // Layouts for each planned node: the stage's nodes, and all before them.
  const std::vector<std::vector<TensorSpec>>& parameter_layouts() const { return layouts_; }
  const TensorSpec& spec(Value value) const { return specs_[value]; }
  // A value's memory. After forward(), the images, the labels, the logits and the loss are valid; later layers may have
  // overwritten other values. REQUIRES: bind() has been called.
  DeviceView value(Value value) const;
  const ActivationPlan& activation_plan() const { return activation_plan_; }

  void bind(const Parameters& parameters, ActivationArena& memory);

  // From now on, adds a span to this lane for each layer's forward and backward; null: adds none. A pass that is fused
  // with a neighbour's has none.
  void record_to(TraceLane* lane) { lane_ = lane; }

  // The part of a shared token embedding's gradient that backward() leaves out, because most rows are 0: the embedded
  // tokens' gradient, which is valid after backward(). None if no embedding is shared, or it is frozen.
  struct EmbeddingGradient {
    DeviceView table;   // the parameter's gradient
    DeviceView rows;    // {batch x length, width}
    DataType type;      // of `rows`
    std::size_t width;  // row width in both, in values, padding included
  };
  const std::optional<EmbeddingGradient>& embedding_gradient() const { return embedding_gradient_; }

  // Sets the all-reduce for operations that need it in the middle of a pass. Without it, they compute as on a single
  // rank.
  void sum_over_ranks(const SumOverRanks& sum);

  // Sets the exchange with a stage's neighbours, for all passes. REQUIRES: this is a stage.
  void link(const StageLinks& links) { links_ = links; }
  bool computes_loss() const { return nodes_.end == steps_.size(); }  // no stage, or the last stage

  // Positions in the arena at which forward() and backward() must call back. Devices that record work record the layers
  // between two stops as one segment; other devices call back for every layer.
  struct Stops {
    std::vector<std::size_t> forward, backward;  // ascending
    // Backward calls back for these when a whole segment has been enqueued, with a mark within the segment.
    std::vector<std::size_t> marks{};
  };
  void stop_at(const Stops& stops);

  // A step: load, forward, and in training backward. `images`: or token windows, int32. `keys` are Graph::kSampleKeys;
  // only training with dropout needs them, and throws Error if they are missing.
  void load(std::span<const std::uint8_t> images, const Labels& labels, std::span<const std::int32_t> keys = {});
  // The same with a function that writes the images or windows on the lane.
  using WriteImages = std::function<void(DeviceView to)>;
  void load(const WriteImages& write, const Labels& labels, std::span<const std::int32_t> keys = {});
  // Called before every layer, or every recorded segment. Parameters from this position to the arena's end must be up
  // to date for this step.
  using Needed = std::function<void(std::size_t parameters_from)>;
  // `then_backward`: the sample weight of the backward() that follows, before any other work on the lane. Devices that
  // record work may then record the last segment together with backward's first.
  void forward(
      const Needed& needed = [](std::size_t) {}, const std::optional<float>& then_backward = {});

  // Called with the number of gradients, from the arena's start, that are final: after a layer, a segment, or part of a
  // large layer. `since`: the lane's mark at which they became final; none: now. See Op::backward for sample_weight.
  using Ready = std::function<void(std::size_t gradients, const std::optional<Mark>& since)>;
  void backward(
      float sample_weight, const Ready& ready = [](std::size_t, const std::optional<Mark>&) {});

  LossSums loss() const;  // from the last forward or, in training with a LanguageModelHead, the last backward

 private:
  struct Addition {
    DeviceView partial, gradient;
    DataType type;
  };
  struct Step {
    std::unique_ptr<Op> op;
    std::vector<Addition> additions;  // to be done after the node's backward
    Range parameters;                 // with gradients, in the arena, in floats; empty if it has none
    std::size_t parameters_from = 0;  // the first parameter's position, shared ones included; or the maximum
    bool runs_backward = false;       // in training
    // Whether a neighbour's pass does this node's; see FusedPasses.
    bool forward_is_fused = false, backward_is_fused = false;
  };

  // Work that is recorded when it is repeated.
  struct Repeated {
    bool recordable = true;
    std::unique_ptr<Recording> recording{};
    bool done_before = false;
  };
  // Within a segment of backward: the gradients up to `place` are final after a layer, which Stops::marks reports.
  struct MarkedPlace {
    std::size_t step, place;
  };
  // Layers that run, and are recorded, together.
  struct CapturedSegment {
    Range steps;  // in ActivationPlan::order()
    // In the arena: forward needs the parameters from here on, or backward's gradients are final up to here.
    std::size_t place;
    Repeated work{};
    std::vector<MarkedPlace> marked{};
  };

  std::unique_ptr<Op> plan_node(std::size_t node, bool runs_backward, std::vector<TensorSpec> layouts) const;
  std::vector<Step> plan_steps(const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned);
  bool plan_all(std::vector<Step>& steps, const std::vector<std::vector<TensorSpec>>& layouts, SharedLayouts& shared,
                const Planned& planned);
  void fuse(std::vector<Step>& steps) const;
  std::vector<const Op*> ops() const;
  const std::vector<std::size_t>& order() const { return activation_plan_.order(); }
  void load_labels(const Labels& labels);
  void bind_step(std::size_t node, const Parameters& parameters);
  NeighbourBindings neighbour_bindings(std::size_t node) const;
  std::vector<DeviceView> parameter_gradients(std::size_t node, const Parameters& parameters);
  DeviceView view(const ActivationPlan::Piece& piece) const { return activation_plan_.view(piece, activations_); }
  bool recordable(std::size_t step) const { return device_.info().records && !steps_[step].op->info().sums_over_ranks; }
  void plan_forward(std::span<const std::size_t> stops);
  void plan_backward(const Stops& stops);
  bool traced() const { return lane_ != nullptr && lane_->recording(); }
  bool can_join() const;
  void use_weight(float sample_weight);
  template <class Work>
  void run(Repeated& repeated, const Work& work);
  void forward_segment(const CapturedSegment& segment);
  void backward_segment(const CapturedSegment& segment, float sample_weight);
  void backward_segments(float sample_weight, const Ready& ready);
  void forward_layer(std::size_t step);
  void backward_layer(std::size_t step, float sample_weight);

  Device& device_;
  const Graph& graph_;
  const Range nodes_;
  Mode mode_;
  std::size_t batch_;
  bool wants_keys_;
  std::vector<MixedLabel> unmixed_;  // to load() labels that are not mixed, if the graph mixes them
  std::vector<TensorSpec> specs_;    // for every value that is computed by the stage's end
  std::vector<std::vector<TensorSpec>> layouts_;
  std::vector<Step> steps_;  // for each node; empty outside the stage
  ActivationPlan activation_plan_;
  SharedGradients shared_gradients_;
  std::vector<Buffer> outside_;  // the values that come from outside
  Buffer entering_;              // and from the stage before
  DeviceView activations_;       // the activation arena, with all other values
  std::optional<EmbeddingGradient> embedding_gradient_;
  ActivationArena unread_gradients_;                 // for frozen parameters, from operations that do not skip them
  std::vector<CapturedSegment> forward_, backward_;  // in execution order
  Repeated joined_;                                  // forward_'s last and backward_'s first
  bool begun_ = false;                               // forward() has run joined_, and backward() goes on after it
  std::vector<Mark> marks_;                          // in the segment that ran last
  float recorded_weight_ = 0;                        // sample_weight in the recordings of backward
  const Ready* ready_ = nullptr;                     // the current backward()'s
  TraceLane* lane_ = nullptr;
  StageLinks links_;
};

}  // namespace annulus
