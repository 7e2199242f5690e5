#include "collectives/gpu/pull_ring.h"

#include <algorithm>

#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/gpu/ring_sum.h"
#include "collectives/ring/ring_schedule.h"

namespace annulus {

Range PullRing::chunk(std::size_t count, std::size_t number) const {
  return split_blocks(count, PeerAllReduce::kLine, size_, number);
}

PullRing::Job PullRing::plan(std::size_t count, Verb verb, std::uint32_t ready, std::uint32_t number) const {
  const std::size_t largest_chunk = chunk(count, 0).size() * sizeof(float);
  return {.verb = verb,
          .segments = std::max<std::size_t>(1, (largest_chunk + segment_bytes_ - 1) / segment_bytes_),
          .begun = ready + 1,
          .number = number};
}

void PullRing::put(float* own, const float* previous, std::size_t count, const Job& job) const {
  notify_next(job.begun);
  std::uint32_t exchange = 0;
  if (job.verb != Verb::all_gather)
    for (const RingStep step : reduce_scatter(rank_, size_))
      exchange = pull_chunk(own, previous, chunk(count, step.receive), job, exchange, Pull::add);
  if (job.verb != Verb::reduce_scatter)
    for (const RingStep step : all_gather(rank_, size_))
      exchange = pull_chunk(own, previous, chunk(count, step.receive), job, exchange, Pull::replace);
  stream_flags_.write(stream_, &flags_.previous->consumed, job.number);
  stream_flags_.wait(stream_, &flags_.own->consumed, job.number);
}

std::uint32_t PullRing::pull_chunk(float* own, const float* previous, const Range& chunk, const Job& job,
                                   std::uint32_t exchange, Pull pull) const {
  for (std::size_t segment = 0; segment < job.segments; ++segment, ++exchange) {
    const Range part = split_blocks(chunk.size(), PeerAllReduce::kLine, job.segments, segment);
    float* const to = own + chunk.begin + part.begin;
    const float* const from = previous + chunk.begin + part.begin;
    stream_flags_.wait(stream_, &flags_.own->ready, ready_for(job, exchange));
    if (pull == Pull::add)
      cuda::add_from_peer(from, to, part.size(), stream_);
    else if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(to, from, part.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
    notify_next(job.begun + exchange + 1);
  }
  return exchange;
}

// The data that an exchange pulls was ready from the start, or results from the previous rank's exchange a step
// earlier.
std::uint32_t PullRing::ready_for(const Job& job, std::uint32_t exchange) {
  const auto segments = static_cast<std::uint32_t>(job.segments);
  return exchange < segments ? job.begun : job.begun + exchange - segments + 1;
}

std::uint32_t PullRing::exchanges(const Job& job) const {
  const std::size_t phases = job.verb == Verb::all_reduce ? 2 : 1;
  return static_cast<std::uint32_t>(phases * (size_ - 1) * job.segments);
}

}  // namespace annulus
