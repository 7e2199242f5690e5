// Operations by the other backend, which gets bytes, since gloo does not support all types.
#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <numeric>

#include "src/torch/annulus_torch/process_group.h"
#include "src/torch/annulus_torch/tensors.h"

namespace annulus {
namespace {

// Returns a view, which keeps the tensor. REQUIRES: it is contiguous.
at::Tensor bytes_in(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, [tensor](void*) {}, at::kByte);
}

// Returns bytes to be received. A tensor that is not contiguous is written when the operation ends.
at::Tensor landing(const OperationPointer& operation, const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  if (!values.is_alias_of(tensor)) operation->then([=] { tensor.copy_(values); });
  return bytes_in(values);
}

Tensors landings(const OperationPointer& operation, const Tensors& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) found.push_back(landing(operation, tensor));
  return found;
}

Tensors bytes_of_each(const Tensors& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) found.push_back(bytes_in(tensor.contiguous()));
  return found;
}

// Returns bytes if the tensor is contiguous. Otherwise the other backend copies it or fails.
at::Tensor to_receive(const char* what, const Tensors& tensors) {
  const at::Tensor& tensor = single(what, tensors);
  return tensor.is_contiguous() ? bytes_in(tensor) : tensor;
}

std::vector<int64_t> sizes_of(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return bytes;
}

// Converts row counts to bytes. An empty list stands for equal counts.
std::vector<int64_t> byte_splits(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  std::vector<int64_t> found;
  for (const int64_t split : splits)
    found.push_back(rows > 0 ? split * static_cast<int64_t>(tensor.nbytes()) / rows : 0);
  return found;
}

}  // namespace

ProcessGroup::WorkPointer ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  check(output);
  check(input);
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "annulus: all_to_all_single needs tensors of one type");
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  const auto operation = start(c10d::OpType::ALLTOALL_BASE, "annulus:all_to_all", {input}, {output}, options);
  at::Tensor sent = bytes_in(input.contiguous()), received = landing(operation, output);
  std::vector<int64_t> send_bytes = byte_splits(input, input_splits),
                       receive_bytes = byte_splits(output, output_splits);
  add_other(operation, others()->alltoall_base(received, sent, receive_bytes, send_bytes, options));
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  single("all_to_all", {inputs}, size_);
  single("all_to_all", {outputs}, size_);
  const auto operation = start(c10d::OpType::ALLTOALL, "annulus:all_to_all", inputs, outputs, options);
  std::vector<int64_t> send_bytes = sizes_of(inputs), receive_bytes = sizes_of(outputs);
  at::Tensor sent = at::cat(bytes_of_each(inputs));
  at::Tensor received = at::empty({std::accumulate(receive_bytes.begin(), receive_bytes.end(), int64_t{0})}, at::kByte);
  operation->then([outputs, received] {
    int64_t begin = 0;
    for (const at::Tensor& part : outputs) {
      const auto bytes = static_cast<int64_t>(part.nbytes());
      part.copy_(received.narrow(0, begin, bytes).view(part.scalar_type()).view(part.sizes()));
      begin += bytes;
    }
  });
  add_other(operation, others()->alltoall_base(received, sent, receive_bytes, send_bytes, options));
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  const at::Tensor& input = single("gather", inputs);
  Tensors parts;
  if (rank_ == options.rootRank) {
    parts = single("gather", outputs, size_);
    check_equal("gather", parts, input);
  }
  const auto operation = start(c10d::OpType::GATHER, "annulus:gather", inputs, parts, options);
  Tensors sent = bytes_of_each(inputs);
  std::vector<Tensors> received;
  if (!parts.empty()) received.push_back(landings(operation, parts));
  add_other(operation, others()->gather(received, sent, options));
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  const at::Tensor& output = single("scatter", outputs);
  std::vector<Tensors> sent;
  if (rank_ == options.rootRank) {
    const Tensors& parts = single("scatter", inputs, size_);
    check_equal("scatter", parts, output);
    sent.push_back(bytes_of_each(parts));
  }
  const auto operation = start(c10d::OpType::SCATTER, "annulus:scatter", outputs, outputs, options);
  Tensors received = landings(operation, outputs);
  add_other(operation, others()->scatter(received, sent, options));
  operation->ended("");
  return operation;
}

ProcessGroup::WorkPointer ProcessGroup::send(Tensors& tensors, int to, int tag) {
  Tensors sent{bytes_in(single("send", tensors).contiguous())};
  return others()->send(sent, to, tag);
}

ProcessGroup::WorkPointer ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  Tensors received{to_receive("recv", tensors)};
  return others()->recv(received, from, tag);
}

ProcessGroup::WorkPointer ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  Tensors received{to_receive("recv", tensors)};
  return others()->recvAnysource(received, tag);
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  others()->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace annulus
