// The operations that Annulus leaves to MPI.
#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <array>

#include "src/torch/annulus_torch/process_group.h"
#include "src/torch/annulus_torch/tensors.h"

namespace annulus {

ProcessGroup::WorkPointer ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  check(output);
  check(input);
  TORCH_CHECK(output.scalar_type() == input.scalar_type() && output.is_contiguous() && input.is_contiguous(),
              "annulus: all_to_all_single needs contiguous tensors of one type");
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  Tensors outputs{output}, inputs{input};
  const auto operation = start(c10d::OpType::ALLTOALL_BASE, "annulus:all_to_all", inputs, outputs, options);
  const auto places = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const auto rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    const std::size_t row = rows > 0 ? tensor.nbytes() / static_cast<std::size_t>(rows) : 0;
    std::vector<int> counts, offsets;
    std::size_t end = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const auto bytes = row * static_cast<std::size_t>(splits.empty() ? rows / size_ : splits[rank]);
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
  add_mpi(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Ialltoallv(input.data_ptr(), sent->first.data(), sent->second.data(), MPI_BYTE, output.data_ptr(),
                             received->first.data(), received->second.data(), MPI_BYTE, collectives_.handle(),
                             &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  std::vector<Tensors> lists{inputs, outputs};
  single("all_to_all", {inputs}, size_);
  single("all_to_all", {outputs}, size_);
  const auto operation = start(c10d::OpType::ALLTOALL, "annulus:all_to_all", inputs, outputs, options);
  const at::Tensor sent = concatenated(inputs);
  int64_t elements = 0;
  const auto places = std::make_shared<std::array<std::vector<int>, 4>>();  // counts and offsets sent, and received
  for (std::size_t side = 0; side < 2; ++side) {
    elements = 0;
    for (const at::Tensor& tensor : lists[side]) {
      (*places)[2 * side].push_back(bytes_of(tensor));
      (*places)[2 * side + 1].push_back(count_of(static_cast<std::size_t>(elements) * tensor.itemsize()));
      elements += tensor.numel();
    }
  }
  const at::Tensor received = at::empty({elements}, outputs[0].options());
  operation->keep(sent);
  operation->then([places, parts = outputs, received] { split_into(parts, received); });
  add_mpi(operation, [&](MPI_Request& request) {
    auto& [send_counts, send_offsets, receive_counts, receive_offsets] = *places;
    check_mpi(MPI_Ialltoallv(sent.data_ptr(), send_counts.data(), send_offsets.data(), MPI_BYTE, received.data_ptr(),
                             receive_counts.data(), receive_offsets.data(), MPI_BYTE, collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  const at::Tensor input = single("gather", inputs).contiguous();
  const bool root = rank_ == options.rootRank;
  Tensors parts;
  at::Tensor flat = at::empty({0}, input.options());
  if (root) {
    parts = single("gather", outputs, size_);
    check_equal("gather", parts, input);
    flat = at::empty({input.numel() * size_}, input.options());
  }
  const auto operation = start(c10d::OpType::GATHER, "annulus:gather", inputs, parts, options);
  operation->keep(input);
  operation->then([=] { split_into(parts, flat); });
  add_mpi(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Igather(input.data_ptr(), bytes_of(input), MPI_BYTE, flat.data_ptr(), bytes_of(input), MPI_BYTE,
                          static_cast<int>(options.rootRank), collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  const at::Tensor output = single("scatter", outputs), part = output.contiguous();
  at::Tensor flat = at::empty({0}, output.options());
  if (rank_ == options.rootRank) {
    const Tensors& parts = single("scatter", inputs, size_);
    check_equal("scatter", parts, output);
    flat = concatenated(parts);
  }
  const auto operation = start(c10d::OpType::SCATTER, "annulus:scatter", outputs, outputs, options);
  operation->keep(flat);
  operation->keep(part);
  if (!part.is_alias_of(output)) operation->then([=] { output.copy_(part); });
  add_mpi(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Iscatter(flat.data_ptr(), bytes_of(part), MPI_BYTE, part.data_ptr(), bytes_of(part), MPI_BYTE,
                           static_cast<int>(options.rootRank), collectives_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::send(Tensors& tensors, int to, int tag) {
  const at::Tensor values = single("send", tensors).contiguous();
  const auto operation = start(c10d::OpType::SEND, "annulus:send", tensors, {});
  operation->keep(values);
  add_mpi(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Isend(values.data_ptr(), bytes_of(values), MPI_BYTE, to, tag, messages_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor tensor = single("recv", tensors), values = tensor.contiguous();
  const auto operation =
      start(from == MPI_ANY_SOURCE ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, "annulus:recv", {}, tensors);
  operation->keep(values);
  if (!values.is_alias_of(tensor)) operation->then([=] { tensor.copy_(values); });
  add_mpi(operation, [&](MPI_Request& request) {
    check_mpi(MPI_Irecv(values.data_ptr(), bytes_of(values), MPI_BYTE, from, tag, messages_.handle(), &request));
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, MPI_ANY_SOURCE, tag);
}

// Every rank reports to rank 0, which answers when all have reported, or names the missing ranks.
void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto limit = options.timeout < kNoTimeout ? timeout_ : options.timeout;
  TORCH_CHECK_WITH(DistBackendError, limit > kNoTimeout, "Rank ", rank_, " timed out in monitoredBarrier after ",
                   limit.count(), " ms");
  constexpr int tag = 0;
  const auto message = [&](int other, bool sends) {
    const auto operation = start(c10d::OpType::BARRIER, "annulus:monitored_barrier", {}, {}, limit);
    add_mpi(operation, [&](MPI_Request& request) {
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
