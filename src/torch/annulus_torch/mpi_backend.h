#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "src/torch/annulus_torch/communicator.h"
#include "src/torch/annulus_torch/mpi_requests.h"
#include "src/torch/annulus_torch/operation.h"

namespace annulus {

// The operations that Annulus leaves to MPI. Each returns immediately. Tensors are contiguous, but for recv(), and of
// bytes, but for allreduce().
class MpiBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  // Collective over `ranks`.
  MpiBackend(int rank, int size, const Communicator& ranks, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { requests_.fail_all("aborted"); }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  OperationPointer start(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                         std::chrono::milliseconds timeout = kNoTimeout);
  void add(const OperationPointer& operation, const std::function<void(MPI_Request&)>& start);

  Communicator collectives_, messages_, control_;  // separate, so that none matches another's messages
  MpiRequests requests_;
  std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> started_{0};
};

}  // namespace annulus
