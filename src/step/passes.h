#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "models/network/model.h"
#include "src/data/loader.h"
#include "src/job/activity.h"
#include "src/step/parts.h"
#include "src/step/resident_images.h"

namespace annulus {

// The images, references to images, or windows of a part.
std::span<const std::uint8_t> samples_of(const Batch& batch, const BatchPart& part);

// A rank's passes through the network, part by part. Both references must outlive them.
class Passes {
 public:
  using Computed = std::function<void(const BatchPart& part, std::size_t count)>;

  // `images`: see StepTools. `tick`: called after each layer. `computed`: called when a part's first `count` gradients
  // are final.
  Passes(Model& model, ResidentImages* images, Activity& activity, std::function<void()> tick, Computed computed)
      : model_(model), images_(images), activity_(activity), tick_(std::move(tick)), computed_(std::move(computed)) {}

  void load(const Batch& batch, const BatchPart& part);
  // `samples`: of the backward pass, which follows before any other work on the lane, except in a pipeline. `needed`:
  // see Network::forward(); called with 0 if the part is empty.
  void forward(const BatchPart& part, std::size_t samples, const Network::Needed& needed);
  // Gradients become the part's share of a mean over `samples` samples, zeros if it is empty. `ready`: see
  // Network::backward().
  void backward(const BatchPart& part, std::size_t samples, const Network::Ready& ready);

  // Returns the network of a part that is not empty. It keeps the part's activations until backward.
  Network& network(const BatchPart& part) { return model_.network(Mode::training, part.samples.size(), part.slot); }

  // What the network writes of the gradients' arena: all but the ranks' control flags.
  DeviceView written() const;

 private:
  Model& model_;
  ResidentImages* const images_;
  Activity& activity_;
  const std::function<void()> tick_;
  const Computed computed_;
};

}  // namespace annulus
