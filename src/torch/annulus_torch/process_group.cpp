#include "src/torch/annulus_torch/process_group.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "src/torch/annulus_torch/communicator.h"
#include "src/torch/annulus_torch/mpi_backend.h"
#include "src/torch/annulus_torch/tensors.h"

namespace annulus {
namespace {

// Frees ended groups, each on a separate thread: the last owner may be the group's own thread.
class Reaper {
 public:
  void free(annulus_group* group) {
    const std::lock_guard lock(mutex_);
    if (!closed_) threads_.emplace_back([group] { annulus_group_finish(group); });
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    threads_.clear();
  }

 private:
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::jthread> threads_;
};

// Lives longer than any tensor.
Reaper& reaper() {
  static auto* const reaper = new Reaper;
  return *reaper;
}

// The groups that have not been destroyed.
class LiveGroups {
 public:
  void add(const std::shared_ptr<annulus_group>& group) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& other) { return other.expired(); });
    groups_.push_back(group);
  }
  void leave(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_)
      if (const auto live = group.lock()) annulus_leave(live.get(), reason.c_str());
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<annulus_group>> groups_;
};

LiveGroups& live_groups() {
  static auto* const groups = new LiveGroups;
  return *groups;
}

// Passes bytes between starting ranks by PyTorch's store.
struct StoreExchange {
  c10d::Store& store;
  int rank, size;
  std::string error;
  int round = 0;

  static int run(void* data, const void* own, std::size_t bytes, void* all) {
    auto& exchange = *static_cast<StoreExchange*>(data);
    try {
      const auto* const sent = static_cast<const uint8_t*>(own);
      const std::string keys = "start/" + std::to_string(exchange.round++) + "/";
      exchange.store.set(keys + std::to_string(exchange.rank), std::vector<uint8_t>(sent, sent + bytes));
      for (int rank = 0; rank < exchange.size; ++rank) {
        const std::vector<uint8_t> got = exchange.store.get(keys + std::to_string(rank));
        TORCH_CHECK(got.size() == bytes, "another version of annulus_torch runs on rank ", rank);
        std::copy(got.begin(), got.end(), static_cast<uint8_t*>(all) + bytes * static_cast<std::size_t>(rank));
      }
      return 0;
    } catch (const std::exception& failure) {
      exchange.error = failure.what();
      return 1;
    }
  }
};

annulus_options options_of(std::chrono::milliseconds timeout) {
  return {std::chrono::duration<double>(timeout).count(), 0};
}

// Frees the group and throws if it did not start.
void check_start(annulus_status status, annulus_group* group, const std::string& reason = "") {
  if (status == ANNULUS_OK) return;
  const std::string error = text_of(group, status);
  annulus_group_finish(group);
  TORCH_CHECK_WITH(DistBackendError, false, error, reason.empty() ? "" : ": ", reason);
}

}  // namespace

using c10d::ReduceOp;

ProcessGroup::ProcessGroup(annulus_group* group, Others others, std::chrono::milliseconds timeout)
    : Backend(annulus_rank(group), annulus_size(group)), others_(std::move(others)), timeout_(timeout) {
  group_ = std::shared_ptr<annulus_group>(group, [ended = ended_](annulus_group* last) {
    if (*ended) reaper().free(last);  // without the other ranks, which only an ended group can be
  });
  live_groups().add(group_);
}

c10::intrusive_ptr<ProcessGroup> ProcessGroup::by_mpi(int rank, int size, const std::vector<int>& members,
                                                      std::chrono::milliseconds timeout) {
  const Communicator ranks = Communicator::of(members);
  const annulus_options options = options_of(timeout);
  const MPI_Comm communicator = ranks.handle();
  annulus_group* group = nullptr;
  check_start(annulus_group_start(&communicator, &options, &group), group);
  return c10::make_intrusive<ProcessGroup>(group, c10::make_intrusive<MpiBackend>(rank, size, ranks, timeout), timeout);
}

c10::intrusive_ptr<ProcessGroup> ProcessGroup::on_node(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                                                       std::chrono::milliseconds timeout) {
  StoreExchange exchange{*store, rank, size};
  const annulus_options options = options_of(timeout);
  annulus_group* group = nullptr;
  const annulus_status status =
      annulus_group_start_on_node(rank, size, StoreExchange::run, &exchange, &options, &group);
  check_start(status, group, exchange.error);
  return c10::make_intrusive<ProcessGroup>(group, nullptr, timeout);
}

void ProcessGroup::leave_all(const std::string& reason) {
  live_groups().leave(reason);
}

void ProcessGroup::free_all() {
  reaper().close();
}

// Without shutdown() the process is about to end, perhaps by an exception: it must not wait for other ranks.
ProcessGroup::~ProcessGroup() = default;

// The memory of tensors lives on.
void ProcessGroup::shutdown() {
  if (!others_) return;
  try {
    barrier({})->wait();
  } catch (const std::exception&) {  // the group has ended, and the operations have reported why
  }
  abort();
  others_.reset();
}

void ProcessGroup::abort() {
  *ended_ = true;
  annulus_abort(group_.get());
  if (others_) others_->abort();
}

void ProcessGroup::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  others()->setTimeout(timeout);
}

const ProcessGroup::Others& ProcessGroup::others() const {
  TORCH_CHECK_WITH(DistBackendError, others_, "annulus: the process group was shut down");
  return others_;
}

std::string ProcessGroup::description() const {
  return annulus_description(group_.get());
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroup::getBackendOptions() {
  return c10::make_intrusive<Options>("annulus", timeout_);
}

at::Tensor ProcessGroup::allocateTensor(long size, at::TensorOptions options) {
  const auto bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  void* memory = nullptr;
  const annulus_status status = annulus_allocate(group_.get(), bytes, &memory);
  TORCH_CHECK_WITH(DistBackendError, status == ANNULUS_OK, text_of(group_.get(), status));
  return at::from_blob(
      memory, {size}, [group = group_](void* freed) { annulus_free(group.get(), freed); }, options.device(at::kCPU));
}

OperationPointer ProcessGroup::start(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                                     std::chrono::milliseconds timeout, bool waited_for) {
  others();
  return c10::make_intrusive<Operation>(group_, rank_, type, title, inputs, std::move(outputs),
                                        timeout > kNoTimeout ? timeout : timeout_, waited_for, ++started_);
}

void ProcessGroup::add(const OperationPointer& operation, const Call& call) {
  operation->began();
  struct Part {
    OperationPointer operation;
    annulus_group* group;
  };
  auto* const part = new Part{operation, group_.get()};
  annulus_completion completion{};
  completion.data = part;
  completion.waited_for = operation->waited_for() ? 1 : 0;
  completion.done = [](void* data, annulus_status status) {
    const std::unique_ptr<Part> ended(static_cast<Part*>(data));
    ended->operation->ended(text_of(ended->group, status));
  };
  annulus_work work = 0;
  const annulus_status status = call(completion, work);
  if (status == ANNULUS_OK)
    operation->began(work);
  else
    completion.done(part, status);
}

void ProcessGroup::add_other(const OperationPointer& operation, const WorkPointer& work) {
  operation->began();
  work->getFuture()->addCallback([operation, work](c10::ivalue::Future& future) {
    operation->ended(future.hasError() ? future.tryRetrieveErrorMessage() : "");
  });
}

void ProcessGroup::add_all_reduce(const OperationPointer& operation, const at::Tensor& tensor, const ReduceOp& how) {
  check(tensor);
  const at::Tensor real = as_real(tensor, how), values = widened(real).contiguous();
  if (!values.is_alias_of(real)) operation->then([=] { real.copy_(values); });
  operation->keep(values);
  void* const data = values.data_ptr();
  const auto count = static_cast<std::size_t>(values.numel());
  if (const auto ours = reduction_of(how, values.scalar_type()))
    return add(operation, [&](const annulus_completion& completion, annulus_work& work) {
      return annulus_all_reduce(group_.get(), data, data, count, ours->type, ours->operation, &completion, &work);
    });
  add_other_all_reduce(operation, values, how);
}

// Both are contiguous.
void ProcessGroup::add_all_gather(const OperationPointer& operation, const at::Tensor& input,
                                  const at::Tensor& output) {
  operation->keep(input);
  operation->keep(output);
  add(operation, [&](const annulus_completion& completion, annulus_work& work) {
    return annulus_all_gather(group_.get(), input.data_ptr(), output.data_ptr(), input.nbytes(), ANNULUS_UINT8,
                              &completion, &work);
  });
}

void ProcessGroup::add_reduce_scatter(const OperationPointer& operation, const at::Tensor& input,
                                      const at::Tensor& output, const ReduceOp& how) {
  const at::Tensor send = widened(as_real(input, how)), real = as_real(output, how), receive = widened(real);
  const int64_t count = receive.numel();
  if (const auto ours = reduction_of(how, send.scalar_type())) {
    if (!receive.is_alias_of(real)) operation->then([=] { real.copy_(receive); });
    operation->keep(send);
    operation->keep(receive);
    return add(operation, [&](const annulus_completion& completion, annulus_work& work) {
      return annulus_reduce_scatter(group_.get(), send.data_ptr(), receive.data_ptr(), static_cast<std::size_t>(count),
                                    ours->type, ours->operation, &completion, &work);
    });
  }
  const at::Tensor whole = send.clone().view({-1});
  operation->then([=, begin = rank_ * count] { real.copy_(whole.narrow(0, begin, count).view(real.sizes())); });
  add_other_all_reduce(operation, whole, how);
}

void ProcessGroup::add_other_all_reduce(const OperationPointer& operation, const at::Tensor& values,
                                        const ReduceOp& how) {
  Tensors tensors{values};
  c10d::AllreduceOptions options;
  options.reduceOp = how;
  options.timeout = operation->getTimeout();
  add_other(operation, others()->allreduce(tensors, options));
}

ProcessGroup::WorkPointer ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  single("all_reduce", tensors);
  const auto operation = start(c10d::OpType::ALLREDUCE, "annulus:all_reduce", tensors, tensors, options);
  add_all_reduce(operation, tensors[0], options.reduceOp);
  operation->ended("");
  return operation;
}

// Gathers the indices and values of all ranks, padded to the longest rank's with indices and values that count nothing.
// Waits for the other ranks.
ProcessGroup::WorkPointer ProcessGroup::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].is_cpu(),
              "annulus: a sparse all_reduce takes one sparse tensor on the CPU for each rank");
  TORCH_CHECK(options.reduceOp == ReduceOp::SUM, "annulus: sparse tensors can only be summed");
  const at::Tensor own = tensors[0].coalesce();
  const auto gathered = [&](const at::Tensor& tensor) {
    at::Tensor input = tensor.contiguous();
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    at::Tensor output = at::empty(sizes, input.options());
    _allgather_base(output, input, {})->wait();
    return output;
  };
  const int64_t longest = gathered(at::scalar_tensor(own._nnz(), at::kLong)).max().item<int64_t>();
  const int64_t padding = longest - own._nnz();
  const at::Tensor indices = at::constant_pad_nd(own.indices(), {0, padding});
  auto shape = own.values().sizes().vec();
  shape[0] = padding;
  const at::Tensor values = at::cat({own.values(), at::zeros(shape, own.values().options())});
  const auto operation = start(c10d::OpType::_ALLREDUCE_SPARSE, "annulus:all_reduce", {}, tensors, options);
  const at::Tensor all_indices = gathered(indices).permute({1, 0, 2}).reshape({own.sparse_dim(), size_ * longest});
  const at::Tensor all_values = gathered(values).flatten(0, 1);
  tensors[0].copy_(at::sparse_coo_tensor(all_indices, all_values, own.sizes()).coalesce());
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::allreduce_coalesced(Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& options) {
  const auto operation = start(c10d::OpType::ALLREDUCE_COALESCED, "annulus:all_reduce", tensors, tensors, options);
  for (const at::Tensor& tensor : tensors) add_all_reduce(operation, tensor, options.reduceOp);
  operation->ended("");
  return operation;
}

// The tensors of other ranks than the root keep their values.
ProcessGroup::WorkPointer ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = single("reduce", tensors);
  const auto operation = start(c10d::OpType::REDUCE, "annulus:reduce", tensors, tensors, options);
  const at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
  add_all_reduce(operation, sum, options.reduceOp);
  if (rank_ == options.rootRank) operation->then([=] { tensor.copy_(sum); });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = single("broadcast", tensors), values = tensor.contiguous();
  const auto operation = start(c10d::OpType::BROADCAST, "annulus:broadcast", tensors, tensors, options);
  operation->keep(values);
  if (!values.is_alias_of(tensor)) operation->then([=] { tensor.copy_(values); });
  add(operation, [&](const annulus_completion& completion, annulus_work& work) {
    return annulus_broadcast(group_.get(), values.data_ptr(), values.nbytes(), ANNULUS_UINT8,
                             static_cast<int>(options.rootRank), &completion, &work);
  });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  const at::Tensor input = single("all_gather", inputs).contiguous();
  const Tensors parts = single("all_gather", outputs, size_);
  check_equal("all_gather", parts, input);
  const auto operation = start(c10d::OpType::ALLGATHER, "annulus:all_gather", inputs, parts, options);
  const at::Tensor flat = at::empty({input.numel() * size_}, input.options());
  add_all_gather(operation, input, flat);
  operation->then([=] { split_into(parts, flat); });
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  Tensors all;
  for (const Tensors& list : outputs) all.insert(all.end(), list.begin(), list.end());
  const auto operation = start(c10d::OpType::ALLGATHER_COALESCED, "annulus:all_gather", inputs, all, options);
  for (std::size_t number = 0; number < inputs.size(); ++number) {
    Tensors parts;
    for (int rank = 0; rank < size_; ++rank) {
      TORCH_CHECK(outputs.size() == static_cast<std::size_t>(size_) && outputs[rank].size() == inputs.size(),
                  "annulus: all_gather_coalesced needs for each rank a list of ", inputs.size(), " tensors");
      parts.push_back(outputs[rank][number]);
    }
    check(inputs[number]);
    const at::Tensor input = inputs[number].contiguous(), flat = at::empty({input.numel() * size_}, input.options());
    check_equal("all_gather_coalesced", parts, input);
    add_all_gather(operation, input, flat);
    operation->then([=] { split_into(parts, flat); });
  }
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::WorkPointer ProcessGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                        const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "annulus: all_gather needs as many outputs as inputs");
  const auto operation =
      start(c10d::OpType::_ALLGATHER_BASE, "annulus:all_gather_into_tensor", inputs, outputs, options);
  for (std::size_t number = 0; number < inputs.size(); ++number) {
    const at::Tensor &output = outputs[number], &input = inputs[number];
    check(output);
    check(input);
    TORCH_CHECK(output.numel() == input.numel() * size_ && output.scalar_type() == input.scalar_type(),
                "annulus: all_gather_into_tensor: the output must have ", size_, " times the input's elements");
    const at::Tensor whole = output.contiguous();
    if (!whole.is_alias_of(output)) operation->then([=] { output.copy_(whole); });
    add_all_gather(operation, input.contiguous(), whole);
  }
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  const at::Tensor output = single("reduce_scatter", outputs);
  const Tensors& parts = single("reduce_scatter", inputs, size_);
  check_equal("reduce_scatter", parts, output);
  Tensors flat{concatenated(parts)};
  return reduce_scatter_tensor_coalesced(outputs, flat, options);
}

ProcessGroup::WorkPointer ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::WorkPointer ProcessGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                        const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "annulus: reduce_scatter needs as many outputs as inputs");
  const auto operation = start(c10d::OpType::_REDUCE_SCATTER_BASE, "annulus:reduce_scatter", inputs, outputs, options);
  for (std::size_t number = 0; number < inputs.size(); ++number) {
    const at::Tensor &output = outputs[number], &input = inputs[number];
    check(output);
    check(input);
    TORCH_CHECK(input.numel() == output.numel() * size_ && output.scalar_type() == input.scalar_type(),
                "annulus: reduce_scatter: the input must have ", size_, " times the output's elements");
    const at::Tensor part = output.contiguous();
    if (!part.is_alias_of(output)) operation->then([=] { output.copy_(part); });
    add_reduce_scatter(operation, input.contiguous(), part, options.reduceOp);
  }
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  const auto operation = start(c10d::OpType::BARRIER, "annulus:barrier", {}, {}, options);
  add(operation, [&](const annulus_completion& completion, annulus_work& work) {
    return annulus_barrier(group_.get(), &completion, &work);
  });
  operation->ended("");
  return operation;
}

}  // namespace annulus
