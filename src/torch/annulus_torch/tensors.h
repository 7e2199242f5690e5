#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstddef>
#include <optional>
#include <vector>

#include <mpi.h>

#include "collectives/annulus_collectives.h"

namespace annulus {

using Tensors = std::vector<at::Tensor>;

// All throw c10::Error with a text for the user.
int count_of(std::size_t count);  // as MPI counts
int bytes_of(const at::Tensor& tensor);

void check(const at::Tensor& tensor);                                // on the CPU, and not sparse
const at::Tensor& single(const char* what, const Tensors& tensors);  // the only tensor
const Tensors& single(const char* what, const std::vector<Tensors>& lists,
                      int size);                                                    // the only list, of `size` tensors
void check_equal(const char* what, const Tensors& parts, const at::Tensor& whole);  // sizes and types

// A reduction by Annulus; none if MPI has to do it, with the type and operation below.
struct Reduction {
  annulus_type type;
  annulus_operation operation;
};
std::optional<Reduction> reduction_of(const c10d::ReduceOp& how, at::ScalarType type);
MPI_Datatype mpi_type_of(at::ScalarType type);
MPI_Op mpi_operation_of(const c10d::ReduceOp& how, at::ScalarType type);

at::Tensor as_real(const at::Tensor& tensor, const c10d::ReduceOp& how);  // complex numbers are summed as real numbers
at::Tensor widened(const at::Tensor& tensor);  // int16 to int32, whose reductions have the same lower 16 bits
at::Tensor concatenated(const Tensors& tensors);
void split_into(const Tensors& parts, const at::Tensor& flat);  // copies consecutive pieces of `flat`

}  // namespace annulus
