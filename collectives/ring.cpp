#include "collectives/ring.h"

#include <algorithm>

#include "collectives/ring_schedule.h"
#include "kernels/error.h"
#include "kernels/split.h"

namespace annulus {

namespace {

std::span<float> part_of(std::span<float> values, std::size_t parts, std::size_t part) {
  const Range range = split_blocks(values.size(), Ring::kLine, parts, part);
  return values.subspan(range.begin, range.size());
}

}  // namespace

Ring::Ring(std::unique_ptr<RingLink> link, std::size_t rank, std::size_t size, std::shared_ptr<Patience> patience,
           RingOptions options, std::unique_ptr<RingMemory> memory)
    : memory_(std::move(memory)),
      link_(std::move(link)),
      rank_(rank),
      size_(size),
      patience_(std::move(patience)),
      options_(options) {
  if (options.segment_bytes < kLine * sizeof(float) || options.in_flight == 0)
    fail("a ring cannot work with segments of {} bytes, {} in flight; it needs at least {} bytes and 1",
         options.segment_bytes, options.in_flight, kLine * sizeof(float));
}

// While the window is full, the oldest exchange makes room for the next. At the end the window runs empty.
void Ring::sum(std::span<float> values) {
  const Cut cut = this->cut(values.size());
  for (std::size_t number = 0; number < cut.exchanges + cut.window; ++number) {
    if (number >= cut.window) collect(exchange(values, cut.segments, number - cut.window));
    if (number < cut.exchanges) post(exchange(values, cut.segments, number), slot(cut, number));
  }
  link_->finish();
}

std::span<std::byte> Ring::allocate(std::size_t bytes) {
  const auto memory = link_->allocate(bytes);
  return memory.empty() ? memory_->allocate(bytes) : memory;
}

Ring::Cut Ring::cut(std::size_t count) const {
  const std::size_t largest_chunk = split_blocks(count, kLine, size_, 0).size();
  const std::size_t per_segment = options_.segment_bytes / sizeof(float) / kLine * kLine;
  const std::size_t segments = std::max<std::size_t>(1, (largest_chunk + per_segment - 1) / per_segment);
  return {.segments = segments,
          .exchanges = 2 * (size_ - 1) * segments,
          .window = std::min(segments, options_.in_flight),
          .largest = split_blocks(largest_chunk, kLine, segments, 0).size()};
}

Ring::Exchange Ring::exchange(std::span<float> values, std::size_t segments, std::size_t number) const {
  const std::size_t step = number / segments;
  const std::size_t half = size_ - 1;
  const bool adds = step < half;
  const RingStep chunks = adds ? reduce_scatter(rank_, size_)[step] : all_gather(rank_, size_)[step - half];
  const auto segment = [&](std::size_t chunk) {
    return part_of(part_of(values, size_, chunk), segments, number % segments);
  };
  return {.send = segment(chunks.send),
          .receive = segment(chunks.receive),
          .step = step,
          .adds = adds,
          .complete = step == half};
}

// An exchange's slot is free again when the exchange has been collected, and `window` exchanges later it must be.
std::span<float> Ring::slot(const Cut& cut, std::size_t number) {
  return memory_->scratch(cut.window * cut.largest).subspan(number % cut.window * cut.largest, cut.largest);
}

void Ring::post(const Exchange& exchange, std::span<float> slot) {
  const std::span<float> landing = exchange.adds ? slot.first(exchange.receive.size()) : exchange.receive;
  if (exchange.complete) link_->round(exchange.send);  // or this rank would keep other bits than all others
  link_->post(std::as_bytes(exchange.send), std::as_writable_bytes(landing));
  bytes_sent_ += link_->bytes_on_wire(exchange.send.size_bytes());
}

void Ring::collect(const Exchange& exchange) {
  const TraceSpan span(lane_, exchange.adds ? "reduce-scatter" : "all-gather");
  patience_->activity().enter({.name = exchange.adds ? "reduce-scatter, ring step" : "all-gather, ring step",
                               .number = exchange.step + 1,
                               .of = 2 * (size_ - 1)});
  const std::span<const std::byte> arrived = [&] {
    const TraceSpan wait(lane_, "wait for bytes");
    return link_->collect();
  }();
  if (exchange.adds)
    memory_->add(exchange.receive, arrived);
  else if (arrived.data() != std::as_bytes(exchange.receive).data())
    memory_->copy(exchange.receive, arrived);
}

}  // namespace annulus
