#include "src/step/infer.h"

#include <bit>

namespace annulus {
namespace {

// A batch from which bad samples were removed may have any size, and a network for each size would take too much
// memory: it is processed in powers of two. Other batches have one of the few sizes of shares.
std::size_t piece(const Batch& batch, std::size_t done) {
  const std::size_t left = batch.size() - done;
  return batch.bad.empty() ? left : std::bit_floor(left);
}

}  // namespace

std::vector<float> read_value(Model& model, const Network& network, Value value) {
  const TensorSpec& spec = network.spec(value);
  std::vector<float> values(elements(spec.shape));
  model.device().read(spec, network.value(value), values);
  return values;
}

std::vector<float> read_logits(Model& model, const Network& network) {
  return read_value(model, network, model.graph().nodes().back().inputs[0]);
}

void infer(Model& model, const Batch& batch, const InputPlan& input, Activity& activity,
           const std::function<void(const Network& network, const Range& samples)>& done) {
  for (Range samples{}; samples.begin < batch.size(); samples.begin = samples.end) {
    const std::size_t count = piece(batch, samples.begin);
    samples.end = samples.begin + count;
    Network& network = model.network(Mode::inference, count);
    network.load(std::span(batch.images).subspan(samples.begin * input.image_bytes(), count * input.image_bytes()),
                 batch.labels_of(samples));
    network.forward([&activity](std::size_t) { activity.tick(); });
    done(network, samples);
  }
}

}  // namespace annulus
