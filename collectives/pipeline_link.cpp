#include "collectives/pipeline_link.h"

#include <algorithm>

namespace annulus {

PipelineLink::PipelineLink(const World& stages, Device& device)
    : stages_(stages), device_(device), channel_(stages.channel()) {}

void PipelineLink::send(DeviceView values, Neighbour to) {
  send(values, rank_of(to));
}

void PipelineLink::send(DeviceView values, int to) {
  const auto complete = [this](Sending& sending) { return channel_.test(sending.request); };
  auto free = std::ranges::find_if(sendings_, complete);
  Sending& sending = free == sendings_.end() ? sendings_.emplace_back() : *free;
  if (sending.memory.view().bytes < values.bytes) sending.memory = device_.allocate_pinned(values.bytes);
  const DeviceView copy = sending.memory.view().slice(0, values.bytes);
  device_.copy(values, copy);
  device_.finish();
  channel_.start_sending({copy.address, copy.bytes}, to, sending.request);
}

void PipelineLink::receive(DeviceView values, Neighbour from) {
  receive(values, rank_of(from));
}

void PipelineLink::receive(DeviceView values, int from) {
  received_.resize(values.bytes);
  channel_.receive(received_, from);
  device_.upload(received_, values);
}

// Exchanges pieces, so that the copies take little memory.
void PipelineLink::add_other_end(DeviceView values) {
  constexpr std::size_t kPiece = 4 << 20;
  if (!piece_.view()) piece_ = device_.allocate(kPiece);
  const int other = stages_.size() - 1 - stages_.rank();
  for (std::size_t begin = 0; begin < values.bytes; begin += kPiece) {
    const DeviceView own = values.slice(begin, std::min(kPiece, values.bytes - begin));
    const DeviceView others = piece_.view().slice(0, own.bytes);
    send(own, other);
    receive(others, other);
    device_.add(others, own, DataType::f32);
  }
}

void PipelineLink::progress() {
  for (Sending& sending : sendings_) channel_.test(sending.request);
}

}  // namespace annulus
