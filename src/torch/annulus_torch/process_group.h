#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/annulus_collectives.h"
#include "src/torch/annulus_torch/operation.h"

namespace annulus {

// PyTorch's process group over Annulus's collectives, for tensors on CPUs. All-reduce, reduce-scatter, all-gather,
// broadcast and barrier are Annulus's; another backend has the other operations, and the element types and reductions
// that Annulus lacks. Each operation returns immediately. Annulus's operations complete in order on a thread of the
// library.
class ProcessGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  using Others = c10::intrusive_ptr<c10d::Backend>;

  ProcessGroup(annulus_group* group, Others others, std::chrono::milliseconds timeout);
  ~ProcessGroup() override;

  // `members`: the ranks in MPI_COMM_WORLD of this group's ranks, which MPI started. Collective over them.
  static c10::intrusive_ptr<ProcessGroup> by_mpi(int rank, int size, const std::vector<int>& members,
                                                 std::chrono::milliseconds timeout);
  // For processes on one node that MPI did not start, which find each other by `store`. Collective; use() follows.
  static c10::intrusive_ptr<ProcessGroup> on_node(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                                                  std::chrono::milliseconds timeout);
  void use(Others others) { others_ = std::move(others); }  // for the other operations

  const std::string getBackendName() const override { return "annulus"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  static void leave_all(const std::string& reason);  // the groups that have not ended, because the process ends
  static void free_all();                            // the groups that have ended; before MPI ends
  std::string description() const;                   // the all-reduce in use, and the reason

  // DistributedDataParallel and FSDP allocate their buffers here, so operations need not copy them.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions&) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions&) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  // In other_operations.cpp.
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override { return started_; }
  void abort() override;
  void shutdown() override;

 private:
  // Starts an operation of Annulus.
  using Call = std::function<annulus_status(const annulus_completion& completion, annulus_work& work)>;

  OperationPointer start(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                         std::chrono::milliseconds timeout = kNoTimeout, bool waited_for = false);
  template <class Options>
  OperationPointer start(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                         const Options& options) {
    return start(type, title, inputs, std::move(outputs), options.timeout, !options.asyncOp);
  }
  void add(const OperationPointer& operation, const Call& call);
  void add_other(const OperationPointer& operation, const WorkPointer& work);
  void add_other_all_reduce(const OperationPointer& operation, const at::Tensor& values, const c10d::ReduceOp& how);
  const Others& others() const;

  void add_all_reduce(const OperationPointer& operation, const at::Tensor& tensor, const c10d::ReduceOp& how);
  void add_all_gather(const OperationPointer& operation, const at::Tensor& input, const at::Tensor& output);
  void add_reduce_scatter(const OperationPointer& operation, const at::Tensor& input, const at::Tensor& output,
                          const c10d::ReduceOp& how);

  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<annulus_group> group_;  // also owned by tensors in its memory
  Others others_;                         // null after shutdown()
  std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> started_{0};
};

}  // namespace annulus
