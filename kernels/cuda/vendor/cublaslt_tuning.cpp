#include "kernels/cuda/vendor/cublaslt_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/stopwatch.h"

namespace annulus::cuda {
namespace {

// What distinguishes an algorithm: the number and the configuration.
cudnn::Choice choice_of(const MatmulTuner::Algorithm& algorithm) {
  constexpr std::array kWords{CUBLASLT_ALGO_CONFIG_TILE_ID,          CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                              CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                              CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,    CUBLASLT_ALGO_CONFIG_STAGES_ID};
  constexpr std::array kHalfWords{CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
  const auto value = [&](cublasLtMatmulAlgoConfigAttributes_t name, auto zero) {
    std::size_t written = 0;
    const auto status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm.algo, name, &zero, sizeof zero, &written);
    if (status != CUBLAS_STATUS_SUCCESS)
      fail("cuBLASLt does not report an algorithm's configuration: {}", cublasLtGetStatusString(status));
    return std::int64_t{zero};
  };
  cudnn::Choice choice{value(CUBLASLT_ALGO_CONFIG_ID, std::int32_t{}), {}};
  for (const auto name : kWords) choice.knobs[name] = value(name, std::uint32_t{});
  for (const auto name : kHalfWords) choice.knobs[name] = value(name, std::uint16_t{});
  return choice;
}

// Memory to measure a problem on.
class ProductOperands {
 public:
  explicit ProductOperands(const MatmulProblem& p)
      : a_(numbers(p.count * (p.a_transposed ? p.inner : p.rows) * p.a_length())),
        b_(numbers(p.count * (p.b_transposed ? p.columns : p.inner) * p.b_length())),
        output_(numbers(p.count * p.rows * p.output_length())),
        bias_(numbers(p.columns)),
        gelu_input_(numbers(p.has_gelu_input() ? p.rows * p.output_length() : 0)) {}

  MatmulOperands operands() const {
    return {.a = a_.view().address,
            .b = b_.view().address,
            .output = output_.view().address,
            .bias = bias_.view().address,
            .gelu_input = gelu_input_.view().address,
            .factor = reinterpret_cast<const float*>(bias_.view().address)};
  }

 private:
  static Buffer numbers(std::size_t count) { return allocate_numbers(std::max<std::size_t>(count, 4) * sizeof(float)); }

  Buffer a_, b_, output_, bias_, gelu_input_;
};

}  // namespace

MatmulTuner::MatmulTuner(const std::filesystem::path& file, std::shared_ptr<TuningBudget> budget)
    : choice_(file, fmt::format("{}, cuBLASLt {}", current_device_name(), cublasLtGetVersion()), std::move(budget)) {}

MatmulTuner::Algorithm MatmulTuner::fastest(const MatmulProblem& problem, const std::string& name,
                                            const std::vector<Algorithm>& algorithms, const Run& run) {
  std::vector<cudnn::Choice> choices;
  for (const Algorithm& algorithm : algorithms) choices.push_back(choice_of(algorithm));
  std::optional<ProductOperands> scratch;
  std::optional<Stopwatch> stopwatch;
  Buffer workspace;
  const auto measure = [&](std::size_t candidate, double least) {
    if (!scratch) scratch.emplace(problem);
    if (!stopwatch) stopwatch.emplace();
    const Algorithm& algorithm = algorithms[candidate];
    if (workspace.view().bytes < algorithm.workspaceSize) workspace = allocate_device(algorithm.workspaceSize);
    return stopwatch->measure(
        [&](cudaStream_t stream) { run(algorithm, scratch->operands(), workspace.view().address, stream); }, least);
  };
  return algorithms[choice_.fastest(name, choices, measure)];
}

}  // namespace annulus::cuda
