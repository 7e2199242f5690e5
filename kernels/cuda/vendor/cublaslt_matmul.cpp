#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cublaslt_bias.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

static void check(cublasStatus_t status, std::source_location place = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLASLt failed in {} ({}:{}): {}", place.function_name(), place.file_name(), place.line(),
       cublasLtGetStatusString(status));
}

namespace {

// NVIDIA's recommendation for Hopper. Algorithms that split long sums need it.
constexpr std::size_t kWorkspaceLimit = std::size_t{32} << 20;

// A long sum may be split among blocks if the partial sums are added in a fixed order and in float32: in a separate
// step. (Not in place, because the order of the blocks varies, and not in the output's 16 bits.)
constexpr std::uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

template <auto Destroy>
struct Release {
  template <class Handle>
  void operator()(Handle handle) const {
    Destroy(handle);
  }
};
template <class Handle, auto Destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Release<Destroy>>;
using LtHandle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Matrix = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value));
}

LtHandle make_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle));
  return LtHandle(handle);
}

Preference make_preference() {
  cublasLtMatmulPreference_t handle = nullptr;
  check(cublasLtMatmulPreferenceCreate(&handle));
  Preference preference(handle);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceLimit);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference, operand, std::uint32_t{kVectorBytes});
  return preference;
}

cudaDataType_t data_type(DataType type) {
  switch (type) {
    case DataType::bf16:
      return CUDA_R_16BF;
    case DataType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

DataType output_type(const MatmulProblem& problem) {
  return problem.wide_output ? DataType::f32 : value_type(problem.precision);
}

bool narrows_bias(const MatmulProblem& problem) {
  return problem.bias && output_type(problem) != DataType::f32;
}

std::string to_string(const MatmulProblem& p) {
  return fmt::format("matrix product in {} of {}{}{} x {} by {}{} x {}{}{}{}{}", to_string(p.precision),
                     p.count > 1 ? fmt::format("{} times ", p.count) : "", p.a_transposed ? "transposed " : "", p.rows,
                     p.inner, p.b_transposed ? "transposed " : "", p.inner, p.columns, p.bias ? " with bias" : "",
                     p.relu ? " with ReLU" : "", p.wide_output ? ", in float32" : "", p.accumulate ? ", added" : "");
}

void require_sound(const MatmulProblem& p) {
  const auto wrong = [&](std::string_view what) { fail("invalid {}: {}", to_string(p), what); };
  if (p.rows == 0 || p.columns == 0 || p.inner == 0 || p.count == 0) wrong("every size must be at least 1");
  const std::size_t block = channel_block(value_type(p.precision));
  for (const std::size_t side : {p.output_length(), p.a_length(), p.b_length()})
    if (side % block != 0) wrong(fmt::format("rows in memory must have a multiple of {} values", block));
}

// cuBLAS is column-major and we are row-major, so it sees each of our matrices transposed. So we ask it for the
// transposed product: of b and a, in this order.
Matrix matrix(DataType type, std::size_t memory_rows, std::size_t memory_columns, std::size_t length,
              std::size_t count) {
  cublasLtMatrixLayout_t handle = nullptr;
  check(cublasLtMatrixLayoutCreate(&handle, data_type(type), memory_columns, memory_rows,
                                   static_cast<std::int64_t>(length)));
  Matrix layout(handle);
  if (count == 1) return layout;
  const auto batch = static_cast<std::int32_t>(count);
  const auto distance = static_cast<std::int64_t>(memory_rows * length);
  check(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  check(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance,
                                         sizeof distance));
  return layout;
}

cublasLtEpilogue_t epilogue(const MatmulProblem& problem) {
  if (problem.bias) return problem.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return problem.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

Operation make_operation(const MatmulProblem& problem, cublasLtPointerMode_t factors) {
  const auto compute = problem.precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, compute, CUDA_R_32F));
  Operation operation(handle);
  set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, factors);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, problem.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, problem.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(problem));
  if (problem.bias) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(output_type(problem)));
    // Heuristics derive the bias's alignment from the address.
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(kVectorBytes));
  }
  return operation;
}

// An operation with an algorithm that computes it.
struct Way {
  Operation operation;
  cublasLtMatmulHeuristicResult_t found{};
};

class LtMatmul final : public Matmul {
 public:
  LtMatmul(std::shared_ptr<const LtHandle> handle, std::shared_ptr<const Buffer> zero_and_one,
           const MatmulProblem& problem)
      : handle_(std::move(handle)), zero_and_one_(std::move(zero_and_one)), problem_(problem) {
    plain_ = choose(CUBLASLT_POINTER_MODE_HOST);
    // Not every algorithm with a bias or a ReLU can read factors from the device, and no caller needs both.
    if (epilogue(problem) == CUBLASLT_EPILOGUE_DEFAULT) scaled_ = choose(CUBLASLT_POINTER_MODE_DEVICE);
  }

  std::size_t workspace_bytes() const override {
    return library_bytes() + (narrows_bias(problem_) ? problem_.columns * size_of(output_type(problem_)) : 0);
  }

  void run(const void* a, const void* b, const float* bias, void* output, const float* factor, void* workspace,
           cudaStream_t stream) override {
    if (factor != nullptr && !scaled_) fail("a {} does not support a factor", to_string(problem_));
    if (problem_.bias) set(plain_->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, fitting(bias, workspace, stream));
    if (factor == nullptr) {
      const float one = 1, sum_factor = problem_.accumulate ? 1 : 0;
      multiply(*plain_, a, b, output, &one, &sum_factor, workspace, stream);
    } else {
      const auto* zero = reinterpret_cast<const float*>(zero_and_one_->view().address);
      multiply(*scaled_, a, b, output, factor, problem_.accumulate ? zero + 1 : zero, workspace, stream);
    }
  }

 private:
  Way choose(cublasLtPointerMode_t factors) const {
    Way way{make_operation(problem_, factors)};
    const Preference preference = make_preference();
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_->get(), way.operation.get(), b_.get(), a_.get(), output_.get(),
                                       output_.get(), preference.get(), 1, &way.found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || way.found.state != CUBLAS_STATUS_SUCCESS)
      fail("cuBLASLt {} has no algorithm for a {}: choose another precision or batch size ({})", cublasLtGetVersion(),
           to_string(problem_), cublasLtGetStatusString(status));
    return way;
  }

  // The library's workspace, rounded up so that the memory after it is aligned.
  std::size_t library_bytes() const {
    const std::size_t most = std::max(plain_->found.workspaceSize, scaled_ ? scaled_->found.workspaceSize : 0);
    return (most + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  }

  // Returns the bias in the output's type, as the library requires.
  const void* fitting(const float* bias, void* workspace, cudaStream_t stream) const {
    if (!narrows_bias(problem_)) return bias;
    void* narrow = static_cast<std::byte*>(workspace) + library_bytes();
    narrow_bias(bias, problem_.columns, output_type(problem_), narrow, stream);
    return narrow;
  }

  void multiply(const Way& way, const void* a, const void* b, void* output, const float* factor,
                const float* sum_factor, void* workspace, cudaStream_t stream) const {
    check(cublasLtMatmul(handle_->get(), way.operation.get(), factor, b, b_.get(), a, a_.get(), sum_factor, output,
                         output_.get(), output, output_.get(), &way.found.algo, workspace, way.found.workspaceSize,
                         stream));
  }

  std::shared_ptr<const LtHandle> handle_;
  std::shared_ptr<const Buffer> zero_and_one_;  // floats on the device
  MatmulProblem problem_;
  DataType type_ = value_type(problem_.precision);
  Matrix a_ = problem_.a_transposed ? matrix(type_, problem_.inner, problem_.rows, problem_.a_length(), problem_.count)
                                    : matrix(type_, problem_.rows, problem_.inner, problem_.a_length(), problem_.count);
  Matrix b_ = problem_.b_transposed
                  ? matrix(type_, problem_.columns, problem_.inner, problem_.b_length(), problem_.count)
                  : matrix(type_, problem_.inner, problem_.columns, problem_.b_length(), problem_.count);
  Matrix output_ =
      matrix(output_type(problem_), problem_.rows, problem_.columns, problem_.output_length(), problem_.count);
  std::optional<Way> plain_;   // factors of 1, and of 0 or 1
  std::optional<Way> scaled_;  // factors in device memory
};

Buffer make_zero_and_one() {
  constexpr std::array<float, 2> kValues{0, 1};
  return to_device(std::as_bytes(std::span(kValues)));
}

class LtPlanner final : public MatmulPlanner {
 public:
  std::unique_ptr<Matmul> plan(const MatmulProblem& problem) override {
    require_sound(problem);
    return std::make_unique<LtMatmul>(handle_, zero_and_one_, problem);
  }

 private:
  std::shared_ptr<const LtHandle> handle_ = std::make_shared<const LtHandle>(make_handle());
  std::shared_ptr<const Buffer> zero_and_one_ = std::make_shared<const Buffer>(make_zero_and_one());
};

}  // namespace

std::unique_ptr<MatmulPlanner> make_matmul_planner() {
  return std::make_unique<LtPlanner>();
}

}  // namespace annulus::cuda
