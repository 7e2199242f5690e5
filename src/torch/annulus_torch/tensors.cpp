#include "src/torch/annulus_torch/tensors.h"

#include <ATen/Functions.h>

#include <climits>

namespace annulus {

using c10d::ReduceOp;

namespace {

std::optional<annulus_type> type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ANNULUS_FLOAT32;
    case at::kDouble:
      return ANNULUS_FLOAT64;
    case at::kHalf:
      return ANNULUS_FLOAT16;
    case at::kBFloat16:
      return ANNULUS_BFLOAT16;
    case at::kInt:
      return ANNULUS_INT32;
    case at::kLong:
      return ANNULUS_INT64;
    case at::kByte:
    case at::kBool:
      return ANNULUS_UINT8;
    default:
      return std::nullopt;
  }
}

// Annulus's operation. A Boolean is 0 or 1, so its sums and products are maxima and minima.
std::optional<annulus_operation> operation_of(const ReduceOp& how, at::ScalarType type) {
  const bool boolean = type == at::kBool;
  switch (how.op_) {
    case ReduceOp::SUM:
      return boolean ? ANNULUS_MAX : ANNULUS_SUM;
    case ReduceOp::AVG:
      return at::isFloatingType(type) ? std::optional(ANNULUS_AVERAGE) : std::nullopt;
    case ReduceOp::MIN:
      return ANNULUS_MIN;
    case ReduceOp::MAX:
      return ANNULUS_MAX;
    case ReduceOp::PRODUCT:
    case ReduceOp::BAND:
      return boolean ? std::optional(ANNULUS_MIN) : std::nullopt;
    case ReduceOp::BOR:
      return boolean ? std::optional(ANNULUS_MAX) : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

int count_of(std::size_t count) {
  TORCH_CHECK(count <= INT_MAX, "annulus: MPI cannot send ", count, " elements at a time");
  return static_cast<int>(count);
}

int bytes_of(const at::Tensor& tensor) {
  return count_of(tensor.nbytes());
}

void check(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "annulus: of sparse tensors only all_reduce is supported");
  TORCH_CHECK(tensor.is_cpu(), "annulus: tensors must be on the CPU, and this one is on ", tensor.device(),
              "; use init_process_group(\"cpu:annulus,cuda:nccl\")");
}

const at::Tensor& single(const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "annulus: ", what, " takes one tensor for each rank, not ", tensors.size());
  check(tensors[0]);
  return tensors[0];
}

const Tensors& single(const char* what, const std::vector<Tensors>& lists, int size) {
  TORCH_CHECK(lists.size() == 1 && lists[0].size() == static_cast<std::size_t>(size), "annulus: ", what,
              " needs a list of ", size, " tensors, one for each rank");
  for (const at::Tensor& tensor : lists[0]) check(tensor);
  return lists[0];
}

MPI_Datatype mpi_type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kChar:
      return MPI_INT8_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kByte:
    case at::kBool:
      return MPI_UINT8_T;
    default:
      TORCH_CHECK(false, "annulus: this reduction of ", type, " is not supported");
  }
}

MPI_Op mpi_operation_of(const ReduceOp& how, at::ScalarType type) {
  const bool integers = at::isIntegralType(type, /*includeBool=*/true);
  switch (how.op_) {
    case ReduceOp::SUM:
      return MPI_SUM;
    case ReduceOp::MIN:
      return MPI_MIN;
    case ReduceOp::MAX:
      return MPI_MAX;
    case ReduceOp::PRODUCT:
      return MPI_PROD;
    case ReduceOp::BAND:
      if (integers) return MPI_BAND;
      break;
    case ReduceOp::BOR:
      if (integers) return MPI_BOR;
      break;
    case ReduceOp::BXOR:
      if (integers) return MPI_BXOR;
      break;
    default:
      break;
  }
  TORCH_CHECK(false, "annulus: this reduction of ", type, " is not supported");
}

std::optional<Reduction> reduction_of(const ReduceOp& how, at::ScalarType type) {
  const auto ours = type_of(type);
  const auto operation = operation_of(how, type);
  if (!ours || !operation) return std::nullopt;
  return Reduction{*ours, *operation};
}

at::Tensor as_real(const at::Tensor& tensor, const ReduceOp& how) {
  if (!tensor.is_complex()) return tensor;
  TORCH_CHECK(how == ReduceOp::SUM || how == ReduceOp::AVG, "annulus: complex tensors can only be summed");
  return at::view_as_real(tensor);
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kShort ? tensor.to(at::kInt) : tensor;
}

at::Tensor concatenated(const Tensors& tensors) {
  Tensors flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

void check_equal(const char* what, const Tensors& parts, const at::Tensor& whole) {
  for (const at::Tensor& part : parts)
    TORCH_CHECK(part.numel() == whole.numel() && part.scalar_type() == whole.scalar_type(), "annulus: ", what,
                " needs tensors of equal sizes and types");
}

void split_into(const Tensors& parts, const at::Tensor& flat) {
  int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    part.copy_(flat.narrow(0, begin, part.numel()).view(part.sizes()));
    begin += part.numel();
  }
}

}  // namespace annulus
