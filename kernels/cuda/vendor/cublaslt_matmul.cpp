#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cublaslt_tuning.h"
#include "kernels/cuda/vendor/matmul_problem.h"
#include "kernels/cuda/vendor/tuned_matmul.h"

namespace annulus::cuda {

static void check(cublasStatus_t status, std::source_location place = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLASLt failed in {} ({}:{}): {}", place.function_name(), place.file_name(), place.line(),
       cublasLtGetStatusString(status));
}

namespace {

// NVIDIA's recommendation for Hopper. Algorithms that split long sums need it.
constexpr std::size_t kWorkspaceLimit = std::size_t{32} << 20;

constexpr int kCandidates = 16;  // algorithms to be measured

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

// cuBLAS is column-major and we are row-major, so cuBLAS sees our matrices transposed. So we request the transposed
// product: b times a, in this order.
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
  const auto either = [&](cublasLtEpilogue_t plain, cublasLtEpilogue_t biased) {
    return problem.bias ? biased : plain;
  };
  switch (problem.function) {
    case MatmulProblem::Function::none:
      break;
    case MatmulProblem::Function::relu:
      return either(CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS);
    case MatmulProblem::Function::gelu:
      return either(CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS);
    case MatmulProblem::Function::gelu_and_input:
      return either(CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    case MatmulProblem::Function::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return either(CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS);
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
  // Heuristics derive alignments from these addresses.
  if (problem.bias) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(output_type(problem)));
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(kVectorBytes));
  }
  if (problem.has_gelu_input()) {  // by default in the output's type
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(problem.output_length()));
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(kVectorBytes));
  }
  return operation;
}

// An operation, with an algorithm that computes the operation.
struct Way {
  Operation operation;
  cublasLtMatmulHeuristicResult_t found{};
};

class LtMatmul final : public Matmul {
 public:
  LtMatmul(std::shared_ptr<const LtHandle> handle, std::shared_ptr<const Buffer> zero_and_one,
           const MatmulProblem& problem, MatmulTuner* tuner)
      : handle_(std::move(handle)), zero_and_one_(std::move(zero_and_one)), problem_(problem) {
    plain_ = choose(CUBLASLT_POINTER_MODE_HOST, tuner);
    // Not every algorithm with a bias or a function can read factors from the device, and no caller needs both.
    if (epilogue(problem) == CUBLASLT_EPILOGUE_DEFAULT) scaled_ = choose(CUBLASLT_POINTER_MODE_DEVICE, tuner);
  }

  bool found() const { return plain_.has_value(); }

  std::size_t workspace_bytes() const override {
    return std::max(plain_->found.workspaceSize, scaled_ ? scaled_->found.workspaceSize : 0);
  }

  void run(const MatmulOperands& o, void* workspace, cudaStream_t stream) override {
    if (o.factor != nullptr && !scaled_) fail("a {} does not support a factor", to_string(problem_));
    if (o.factor == nullptr)
      run_plain(*plain_, o, workspace, stream);
    else
      run_scaled(*scaled_, o, workspace, stream);
  }

 private:
  void run_plain(const Way& way, const MatmulOperands& o, void* workspace, cudaStream_t stream) const {
    if (problem_.bias) set(way.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    if (problem_.has_gelu_input()) set(way.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.gelu_input);
    const float one = 1, sum_factor = problem_.accumulate ? 1 : 0;
    multiply(way, o, &one, &sum_factor, workspace, stream);
  }

  void run_scaled(const Way& way, const MatmulOperands& o, void* workspace, cudaStream_t stream) const {
    const auto* zero = reinterpret_cast<const float*>(zero_and_one_->view().address);
    multiply(way, o, o.factor, problem_.accumulate ? zero + 1 : zero, workspace, stream);
  }

  // Returns nothing if there is no algorithm with a GELU.
  std::optional<Way> choose(cublasLtPointerMode_t factors, MatmulTuner* tuner) const {
    Way way{make_operation(problem_, factors)};
    const std::vector<MatmulTuner::Algorithm> algorithms = find_algorithms(way, tuner == nullptr ? 1 : kCandidates);
    if (algorithms.empty()) return {};
    way.found = algorithms[0];
    if (tuner == nullptr) return way;
    const bool scaled = factors == CUBLASLT_POINTER_MODE_DEVICE;
    way.found = tuner->fastest(problem_, to_string(problem_) + (scaled ? " with a factor" : ""), algorithms,
                               [&](const auto& algorithm, const auto& operands, void* workspace, cudaStream_t stream) {
                                 way.found = algorithm;
                                 if (scaled) return run_scaled(way, operands, workspace, stream);
                                 run_plain(way, operands, workspace, stream);
                               });
    return way;
  }

  // Returns at most `most` algorithms; none only with a GELU.
  std::vector<MatmulTuner::Algorithm> find_algorithms(const Way& way, int most) const {
    const Preference preference = make_preference();
    std::vector<MatmulTuner::Algorithm> found(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_->get(), way.operation.get(), b_.get(), a_.get(), output_.get(),
                                       output_.get(), preference.get(), most, found.data(), &count);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
    std::erase_if(found, [](const auto& algorithm) { return algorithm.state != CUBLAS_STATUS_SUCCESS; });
    if (found.empty() && !problem_.has_gelu())
      fail("cuBLASLt {} has no algorithm for a {}: choose another precision or batch size ({})", cublasLtGetVersion(),
           to_string(problem_), cublasLtGetStatusString(status));
    return found;
  }

  void multiply(const Way& way, const MatmulOperands& o, const float* factor, const float* sum_factor, void* workspace,
                cudaStream_t stream) const {
    check(cublasLtMatmul(handle_->get(), way.operation.get(), factor, o.b, b_.get(), o.a, a_.get(), sum_factor,
                         o.output, output_.get(), o.output, output_.get(), &way.found.algo, workspace,
                         way.found.workspaceSize, stream));
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
  std::optional<Way> plain_;   // product factor 1, sum factor 0 or 1
  std::optional<Way> scaled_;  // factors in device memory
};

Buffer make_zero_and_one() {
  constexpr std::array<float, 2> kValues{0, 1};
  return to_device(std::as_bytes(std::span(kValues)));
}

// Returns whether GELU in the library's epilogue is faster than our kernel on the current device. We have not measured.
// Others found it faster on 8.0 (FlashAttention's fused_dense) and 9.0, but slower on 8.9, as a separate kernel there
// (github.com/karpathy/llm.c/pull/591), and on 12.0 (github.com/sgl-project/sglang/pull/34350): so data centre GPUs use
// it.
bool fuses_gelu() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return (major == 8 && minor == 0) || major == 9 || major == 10;
}

class LtPlanner final : public MatmulPlanner {
 public:
  LtPlanner(const Tuning& tuning, std::shared_ptr<TuningBudget> budget) {
    if (!tuning.file.empty()) tuner_.emplace(tuning.file, std::move(budget));
  }

  std::unique_ptr<Matmul> plan(const MatmulProblem& problem) override {
    require_sound(problem);
    if (problem.has_gelu() && !fuses_gelu_) return nullptr;
    auto made = std::make_unique<LtMatmul>(handle_, zero_and_one_, problem, tuner_ ? &*tuner_ : nullptr);
    return made->found() ? std::move(made) : nullptr;
  }

 private:
  const bool fuses_gelu_ = fuses_gelu();
  std::optional<MatmulTuner> tuner_;
  std::shared_ptr<const LtHandle> handle_ = std::make_shared<const LtHandle>(make_handle());
  std::shared_ptr<const Buffer> zero_and_one_ = std::make_shared<const Buffer>(make_zero_and_one());
};

}  // namespace

std::unique_ptr<MatmulPlanner> make_matmul_planner() {
  return make_matmul_planner({}, nullptr);
}

std::unique_ptr<MatmulPlanner> make_matmul_planner(const Tuning& tuning, std::shared_ptr<TuningBudget> budget) {
  return std::make_unique<LtPlanner>(tuning, std::move(budget));
}

}  // namespace annulus::cuda
