#include "collectives/ring/ring.h"

#include <algorithm>

#include "collectives/world/shared_memory.h"
#include "kernels/base/error.h"

namespace annulus {

namespace {

std::span<float> part_of(std::span<float> values, const Range& range) {
  return values.subspan(range.begin, range.size());
}

}  // namespace

Ring::Ring(std::unique_ptr<RingLink> link, std::size_t rank, std::size_t size,
           std::shared_ptr<AllReduceContext> context, RingOptions options, std::unique_ptr<RingMemory> memory)
    : AllReduceAlgorithm({.order = "ring of " + to_string(link->wire()), .wire = link->wire(), .all_verbs = true},
                         std::move(context)),
      memory_(std::move(memory)),
      link_(std::move(link)),
      rank_(rank),
      size_(size),
      options_(options) {
  if (options.segment_bytes < RingPartition::kLine * sizeof(float) || options.in_flight == 0)
    fail("a ring cannot use segments of {} bytes, {} in flight; it needs at least {} bytes and 1",
         options.segment_bytes, options.in_flight, RingPartition::kLine * sizeof(float));
}

void Ring::run(std::span<float> values, const Collective& collective) {
  switch (collective.verb) {
    case Verb::all_reduce:
      return run_phases(collective.exact ? link_->exact() : *link_, values, 0, 2);
    case Verb::reduce_scatter: {
      RingLink& link = collective.exact ? link_->exact() : *link_;
      run_phases(link, values, 0, 1);
      return link.round(part_of(values, chunk(values.size())));
    }
    case Verb::all_gather:
      return run_phases(link_->exact(), values, 1, 2);
  }
}

// Collects the oldest exchange before posting the next while the window is full. Drains the window at the end.
void Ring::run_phases(RingLink& link, std::span<float> values, std::size_t first_phase, std::size_t end_phase) {
  const RingPartition cut(values.size(), size_, options_);
  const std::size_t phase = cut.exchanges / 2, begin = first_phase * phase, end = end_phase * phase;
  for (std::size_t number = begin; number < end + cut.window; ++number) {
    if (number >= begin + cut.window) collect(link, values, cut.exchange(rank_, number - cut.window));
    if (number < end) post(link, values, cut.exchange(rank_, number), slot(cut, number));
  }
  link.finish();
}

std::span<std::byte> Ring::allocate(std::size_t bytes, Memory) {
  try {
    if (const auto memory = link_->allocate(bytes); !memory.empty()) return memory;
  } catch (const NoSharedMemory&) {
    elsewhere_ = true;
  }
  return memory_->allocate(bytes);
}

// An exchange's slot is free again when the exchange has been collected, at most `window` exchanges later.
std::span<float> Ring::slot(const RingPartition& cut, std::size_t number) {
  const std::size_t largest = cut.segment(0, 0).size();
  return memory_->scratch(cut.window * largest).subspan(number % cut.window * largest, largest);
}

void Ring::post(RingLink& link, std::span<float> values, const RingExchange& exchange, std::span<float> slot) {
  const std::span<float> send = part_of(values, exchange.send), receive = part_of(values, exchange.receive);
  const std::span<float> landing = exchange.adds ? slot.first(receive.size()) : receive;
  // Without rounding a complete chunk, this rank's bits would differ from all other ranks' bits.
  if (exchange.complete) link.round(send);
  link.post(std::as_bytes(send), std::as_writable_bytes(landing));
  bytes_sent_ += link.bytes_on_wire(send.size_bytes());
}

void Ring::collect(RingLink& link, std::span<float> values, const RingExchange& exchange) {
  const TraceSpan span(lane(), exchange.adds ? "reduce-scatter" : "all-gather");
  context()->progress.enter({.name = exchange.adds ? "reduce-scatter, ring step" : "all-gather, ring step",
                             .number = exchange.step + 1,
                             .of = 2 * (size_ - 1)});
  const std::span<const std::byte> arrived = [&] {
    const TraceSpan wait(lane(), "wait for bytes");
    return link.collect();
  }();
  const std::span<float> receive = part_of(values, exchange.receive);
  if (exchange.adds)
    memory_->add(receive, arrived);
  else if (arrived.data() != std::as_bytes(receive).data())
    memory_->copy(receive, arrived);
}

}  // namespace annulus
