#include "kernels/cpu/dense/linear_forward.h"

#include <string_view>

namespace annulus::cpu {
namespace {

using dnnl::memory;

memory::desc transposed(std::size_t rows, std::size_t columns) {
  const auto dim = [](std::size_t size) { return static_cast<memory::dim>(size); };
  return {{dim(columns), dim(rows)}, memory::data_type::f32, memory::dims{1, dim(columns)}};
}

// With AVX-512 oneDNN has two algorithms. Its inner products first copy the weights, transposed, which costs as much as
// the product of some hundred rows. Its matrix products ("brgemm") copy less: measured with 2 threads they are 1.05 to
// 2.9 times as fast for 16 to 512 rows, and 1.0 to 1.3 times for more rows if there are more features than units; else
// they are up to 1.1 times slower, and far slower for the few rows in text generation.
bool prefers_matrix_product(std::size_t rows, std::size_t features, std::size_t units) {
  constexpr std::size_t kFewest = 16, kMost = 512;
  return rows >= kFewest && (rows <= kMost || features > units);
}

}  // namespace

DnnlPass plan_linear_forward(std::size_t rows, std::size_t features, std::size_t units, bool bias) {
  const auto x = plain_layout({rows, features}), y = plain_layout({rows, units});
  const auto inner_product = [&] {
    using Forward = dnnl::inner_product_forward;
    const auto w = plain_layout({units, features}), b = bias ? plain_layout({units}) : memory::desc();
    return DnnlPass(plan_primitive<Forward>({{dnnl::prop_kind::forward_inference, x, w, b, y}}, attributes()),
                    {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y, true}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_BIAS, b}});
  };
  if (!prefers_matrix_product(rows, features, units)) return inner_product();
  const auto w = transposed(units, features), b = bias ? plain_layout({1, units}) : memory::desc();
  const auto product = plan_primitive<dnnl::matmul>({{x, w, b, y}}, attributes());
  if (!std::string_view(product.impl_info_str()).starts_with("brg")) return inner_product();
  return {product, {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y, true}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_BIAS, b}}};
}

}  // namespace annulus::cpu
