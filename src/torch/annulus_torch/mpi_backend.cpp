#include "src/torch/annulus_torch/mpi_backend.h"

#include <ATen/Functions.h>

#include "src/torch/annulus_torch/tensors.h"

namespace annulus {

MpiBackend::MpiBackend(int rank, int size, const Communicator& ranks, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      collectives_(ranks),
      messages_(ranks.duplicate()),
      control_(ranks.duplicate()),
      requests_(control_),
      timeout_(timeout) {}

OperationPointer MpiBackend::start(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                                   std::chrono::milliseconds timeout) {
  return c10::make_intrusive<Operation>(nullptr, rank_, type, title, inputs, std::move(outputs),
                                        timeout > kNoTimeout ? timeout : timeout_, false, ++started_);
}

void MpiBackend::add(const OperationPointer& operation, const std::function<void(MPI_Request&)>& start) {
  operation->began();
  requests_.add(start, MpiRequests::Clock::now() + operation->getTimeout(),
                [operation, this_title = c10d::opTypeToString(operation->retrieveOpType())](const std::string& error,
                                                                                            const MPI_Status& status) {
                  operation->comes_from(status.MPI_SOURCE);
                  operation->ended(error.empty() ? "" : "annulus: " + this_title + ": " + error);
                });
}

MpiBackend::WorkPointer MpiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& values = tensors[0];
  const MPI_Datatype type = mpi_type_of(values.scalar_type());
  const MPI_Op how = mpi_operation_of(options.reduceOp, values.scalar_type());
  const auto operation = start(c10d::OpType::ALLREDUCE, "annulus:all_reduce", tensors, tensors, options.timeout);
  operation->keep(values);
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data_ptr(), count_of(static_cast<std::size_t>(values.numel())), type,
                             how, collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  const auto operation = start(c10d::OpType::ALLTOALL_BASE, "annulus:all_to_all", {input}, {output}, options.timeout);
  const auto places = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    std::vector<int> counts, offsets;
    std::size_t end = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const auto bytes = static_cast<std::size_t>(splits.empty() ? tensor.numel() / size_ : splits[rank]);
      counts.push_back(count_of(bytes));
      offsets.push_back(count_of(end));
      end += bytes;
    }
    return std::pair(counts, offsets);
  };
  // MPI reads both until the end.
  const auto sent = std::make_shared<std::pair<std::vector<int>, std::vector<int>>>(places(input, input_splits));
  const auto received = std::make_shared<std::pair<std::vector<int>, std::vector<int>>>(places(output, output_splits));
  operation->keep(input);
  operation->keep(output);
  operation->then([sent, received] {});
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Ialltoallv(input.data_ptr(), sent->first.data(), sent->second.data(), MPI_BYTE, output.data_ptr(),
                             received->first.data(), received->second.data(), MPI_BYTE, collectives_.handle(),
                             &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  const at::Tensor& input = inputs[0];
  const bool root = rank_ == options.rootRank;
  Tensors parts;
  at::Tensor flat = at::empty({0}, input.options());
  if (root) {
    parts = outputs[0];
    flat = at::empty({input.numel() * size_}, input.options());
  }
  const auto operation = start(c10d::OpType::GATHER, "annulus:gather", inputs, parts, options.timeout);
  operation->keep(input);
  operation->then([=] { split_into(parts, flat); });
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Igather(input.data_ptr(), bytes_of(input), MPI_BYTE, flat.data_ptr(), bytes_of(input), MPI_BYTE,
                          static_cast<int>(options.rootRank), collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ScatterOptions& options) {
  const at::Tensor& part = outputs[0];
  const at::Tensor flat = rank_ == options.rootRank ? concatenated(inputs[0]) : at::empty({0}, part.options());
  const auto operation = start(c10d::OpType::SCATTER, "annulus:scatter", outputs, outputs, options.timeout);
  operation->keep(flat);
  operation->keep(part);
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Iscatter(flat.data_ptr(), bytes_of(part), MPI_BYTE, part.data_ptr(), bytes_of(part), MPI_BYTE,
                           static_cast<int>(options.rootRank), collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& values = tensors[0];
  const auto operation = start(c10d::OpType::SEND, "annulus:send", tensors, {});
  operation->keep(values);
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Isend(values.data_ptr(), bytes_of(values), MPI_BYTE, to, tag, messages_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor &tensor = tensors[0], values = tensor.contiguous();
  const auto operation =
      start(from == MPI_ANY_SOURCE ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, "annulus:recv", {}, tensors);
  operation->keep(values);
  if (!values.is_alias_of(tensor)) operation->then([tensor, values] { tensor.copy_(values); });
  add(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Irecv(values.data_ptr(), bytes_of(values), MPI_BYTE, from, tag, messages_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

MpiBackend::WorkPointer MpiBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, MPI_ANY_SOURCE, tag);
}

// Every rank reports to rank 0, which answers when all have reported, or names the missing ranks.
void MpiBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto limit = options.timeout < kNoTimeout ? timeout_ : options.timeout;
  TORCH_CHECK_WITH(DistBackendError, limit > kNoTimeout, "Rank ", rank_, " timed out in monitoredBarrier after ",
                   limit.count(), " ms");
  constexpr int tag = 0;
  const auto message = [&](int other, bool sends) {
    const auto operation = start(c10d::OpType::BARRIER, "annulus:monitored_barrier", {}, {}, limit);
    add(operation, [&](MPI_Request& request) {
      check_mpi(sends ? MPI_Isend(nullptr, 0, MPI_BYTE, other, tag, control_.handle(), &request)
                      : MPI_Irecv(nullptr, 0, MPI_BYTE, other, tag, control_.handle(), &request));
    });
    operation->ended("");
    return operation;
  };
  // The texts are gloo's, which scripts search for.
  if (rank_ != 0) {
    message(0, true)->wait(limit);
    try {
      message(0, false)->wait(limit);
    } catch (const std::exception& error) {
      TORCH_CHECK_WITH(DistBackendError, false, "Rank ", rank_, " successfully reached monitoredBarrier, but received ",
                       "errors while waiting for send/recv from rank 0: ", error.what());
    }
    return;
  }
  std::vector<OperationPointer> reports;
  for (int rank = 1; rank < size_; ++rank) reports.push_back(message(rank, false));
  std::string missing;
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
    try {
      reports[static_cast<std::size_t>(rank - 1)]->wait(limit);
    } catch (const std::exception&) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  TORCH_CHECK_WITH(DistBackendError, missing.empty(), wait_all_ranks ? "Ranks " : "Rank ", missing,
                   " failed to pass monitoredBarrier in ", limit.count(), " ms");
  for (int rank = 1; rank < size_; ++rank) message(rank, true)->wait(limit);
}

}  // namespace annulus
