#include "collectives/host/message_calls.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 30;  // elements; MPI counts with int

// REQUIRES: not fp16 or bf16.
MPI_Datatype datatype(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return MPI_FLOAT;
    case ElementType::fp64:
      return MPI_DOUBLE;
    case ElementType::int32:
      return MPI_INT32_T;
    case ElementType::int64:
      return MPI_INT64_T;
    case ElementType::uint8:
      return MPI_UINT8_T;
    case ElementType::fp16:
    case ElementType::bf16:
      break;
  }
  fail("MPI has no {}", to_string(type));
}

// MPI_SUM saturates in some versions of Open MPI.
void sum_bytes(void* values, void* to, int* count, MPI_Datatype*) {
  for (int i = 0; i < *count; ++i) {
    auto& sum = static_cast<std::uint8_t*>(to)[i];
    sum = static_cast<std::uint8_t>(sum + static_cast<const std::uint8_t*>(values)[i]);
  }
}

// A type as large as an element, for copies.
MPI_Datatype copied(ElementType type) {
  const std::size_t bytes = bytes_of(type);
  if (bytes == 1) return MPI_UINT8_T;
  if (bytes == 2) return MPI_UINT16_T;
  return bytes == 4 ? MPI_UINT32_T : MPI_UINT64_T;
}

// Some versions of MPI declare sent arrays without const.
void* address(const std::byte* bytes) {
  return const_cast<std::byte*>(bytes);
}

}  // namespace

MessageCalls::MessageCalls(const World& world, std::unique_ptr<AllReduceAlgorithm> sums)
    : communicator_(world.communicator()), sums_(std::move(sums)), ranks_(static_cast<std::size_t>(world.size())) {
  check(MPI_Op_create(sum_bytes, 1, &sum_of_bytes_));
}

MessageCalls::~MessageCalls() {
  MPI_Op_free(&sum_of_bytes_);
}

MPI_Op MessageCalls::operation(const Reduction& reduction) const {
  if (reduction.operation == ReduceOperation::min) return MPI_MIN;
  if (reduction.operation == ReduceOperation::max) return MPI_MAX;
  return reduction.type == ElementType::uint8 ? sum_of_bytes_ : MPI_SUM;
}

void MessageCalls::run(const Call& call) {
  switch (call.kind) {
    case Call::Kind::barrier: {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Ibarrier(communicator_.handle(), &request));
      return complete(request);
    }
    case Call::Kind::all_reduce:
      return all_reduce(call);
    case Call::Kind::reduce_scatter:
      return reduce_scatter(call);
    case Call::Kind::all_gather:
      return all_gather(call);
    case Call::Kind::broadcast:
      return broadcast(call);
  }
}

void MessageCalls::complete(MPI_Request request) {
  AllReduceContext& context = *sums_->context();
  context.progress.enter({"MPI's collective", 0, 0});
  for (int polls = 0, done = 0;; ++polls) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return;
    context.backoff.pause(polls);
  }
}

void MessageCalls::all_reduce(const Call& call) {
  const ReductionLoops& loops = loops_of(call.reduction);
  const std::size_t bytes = call.count * loops.element_bytes;
  if (loops.element_bytes == bytes_of(loops.wide.type)) {
    if (call.send != call.receive && bytes > 0) std::memcpy(call.receive, call.send, bytes);
    reduce_wide(loops.wide, call.receive, call.count);
    if (loops.finish != nullptr) loops.finish(call.receive, call.count, ranks_, call.receive);
  } else {
    std::byte* const wide = widened(call, call.count);
    reduce_wide(loops.wide, wide, call.count);
    loops.finish(wide, call.count, ranks_, call.receive);
  }
}

void MessageCalls::reduce_wide(const Reduction& wide, std::byte* values, std::size_t count) {
  if (wide == Reduction{}) return sums_->all_reduce({reinterpret_cast<float*>(values), count});
  for (std::size_t begin = 0; begin < count; begin += kMostElements) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(MPI_IN_PLACE, values + begin * bytes_of(wide.type),
                         mpi_count(std::min(kMostElements, count - begin)), datatype(wide.type), operation(wide),
                         communicator_.handle(), &request));
    complete(request);
  }
}

// Returns the sent elements as wide elements, in scratch memory.
std::byte* MessageCalls::widened(const Call& call, std::size_t count) {
  const ReductionLoops& loops = loops_of(call.reduction);
  std::byte* const wide = wide_.first(count * bytes_of(loops.wide.type)).data();
  loops.widen(call.send, count, wide);
  return wide;
}

// MPI reads the whole array and writes a part of it, so both are copies unless the caller's arrays are two.
void MessageCalls::reduce_scatter(const Call& call) {
  const ReductionLoops& loops = loops_of(call.reduction);
  const std::size_t part = call.count * bytes_of(loops.wide.type);
  std::byte* const wide = widened(call, ranks_ * call.count);
  std::byte* const own = part_.first(part).data();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ireduce_scatter_block(wide, own, mpi_count(call.count), datatype(loops.wide.type), operation(loops.wide),
                                  communicator_.handle(), &request));
  complete(request);
  if (loops.finish != nullptr)
    loops.finish(own, call.count, ranks_, call.receive);
  else if (part > 0)
    std::memcpy(call.receive, own, part);
}

void MessageCalls::all_gather(const Call& call) {
  const std::size_t bytes = call.count * call.element_bytes();
  int rank = 0;
  check(MPI_Comm_rank(communicator_.handle(), &rank));
  const bool in_place = call.send == call.receive + static_cast<std::size_t>(rank) * bytes;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(in_place ? MPI_IN_PLACE : address(call.send), mpi_count(call.count), copied(call.reduction.type),
                       call.receive, mpi_count(call.count), copied(call.reduction.type), communicator_.handle(),
                       &request));
  complete(request);
}

void MessageCalls::broadcast(const Call& call) {
  for (std::size_t begin = 0; begin < call.count; begin += kMostElements) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(call.receive + begin * call.element_bytes(),
                     mpi_count(std::min(kMostElements, call.count - begin)), copied(call.reduction.type), call.root,
                     communicator_.handle(), &request));
    complete(request);
  }
}

}  // namespace annulus
