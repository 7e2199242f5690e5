#include "src/step/passes.h"

namespace annulus {
namespace {

float weight_of(std::size_t samples) {
  return 1.0f / static_cast<float>(samples);
}

}  // namespace

std::span<const std::uint8_t> samples_of(const Batch& batch, const BatchPart& part) {
  const std::size_t bytes = batch.size() == 0 ? 0 : batch.images.size() / batch.size();
  return std::span(batch.images).subspan(part.samples.begin * bytes, part.samples.size() * bytes);
}

void Passes::load(const Batch& batch, const BatchPart& part) {
  if (part.samples.size() == 0) return;
  const std::span<const std::uint8_t> samples = samples_of(batch, part);
  const auto write = [&](DeviceView to) {
    if (images_ != nullptr) return images_->show(samples, to);
    model_.device().upload(std::as_bytes(samples), to);
  };
  network(part).load(write, batch.labels_of(part.samples),
                     std::span(batch.keys).subspan(part.samples.begin, part.samples.size()));
}

void Passes::forward(const BatchPart& part, std::size_t samples, const Network::Needed& needed) {
  if (part.samples.size() == 0) return needed(0);
  activity_.enter(Activity::Phase::forward);
  const auto tick = [&](std::size_t parameters) {
    tick_();
    needed(parameters);
  };
  network(part).forward(tick, weight_of(samples));
}

void Passes::backward(const BatchPart& part, std::size_t samples, const Network::Ready& ready) {
  activity_.enter(Activity::Phase::backward);
  if (part.samples.size() == 0) {
    model_.device().zero(written());
    return ready(model_.parameters().gradients().bytes / sizeof(float), {});
  }
  network(part).backward(weight_of(samples), [&](std::size_t gradients, const std::optional<Mark>& since) {
    tick_();
    computed_(part, gradients);
    ready(gradients, since);
  });
}

DeviceView Passes::written() const {
  const DeviceView gradients = model_.parameters().gradients();
  const std::size_t flags = model_.parameters().control_flags().bytes;
  return gradients.slice(flags, gradients.bytes - flags);
}

}  // namespace annulus
