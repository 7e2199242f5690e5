#include "kernels/cuda/vendor/convolution_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

std::string text(const Extent& extent) {
  return extent.square() ? fmt::format("{}", extent.height) : fmt::format("{} x {}", extent.height, extent.width);
}

std::string pass_text(const ConvolutionProblem& p) {
  const auto if_so = [](bool so, std::string_view text) { return so ? text : std::string_view(); };
  return fmt::format("{} convolution{}{}{}{}{}{}{}",
                     p.is<Forward>()        ? "forward"
                     : p.is<BackwardData>() ? "backward data"
                                            : "backward weights",
                     if_so(p.is(BackwardData::added) || p.adds_elsewhere(), " (added)"),
                     if_so(p.normalizes(), " of a normalized input"), if_so(p.ends_block(), " that ends a block"),
                     if_so(p.has_statistics(), " with statistics"), if_so(p.sums_gradient(), " with gradient sums"),
                     if_so(p.has_wide_weights(), " to float32"), if_so(p.is_own(), " by our product"));
}

}  // namespace

std::string to_string(const ConvolutionProblem& p) {
  const Border& border = p.padding;
  std::string padding = text({border.top, border.left});
  if (!border.symmetric()) padding += " to " + text({border.bottom, border.right});
  const std::string dilation = p.dilation == 1 ? "" : ", dilation " + text(p.dilation);
  return fmt::format("{} in {}, {} x {} x {} x {} by {} filters of {} x {}, stride {}, padding {}{}", pass_text(p),
                     to_string(p.precision), p.batch, p.height, p.width, p.channels, p.filters, p.kernel.height,
                     p.kernel.width, text(p.stride), padding, dilation);
}

void require_sound(const ConvolutionProblem& problem) {
  const std::size_t block = channel_block(value_type(problem.precision));
  const auto wrong = [&](std::string_view what) { fail("invalid {}: {}", to_string(problem), what); };
  const std::array sizes{problem.batch,        problem.channels,      problem.height,
                         problem.width,        problem.filters,       problem.kernel.height,
                         problem.kernel.width, problem.stride.area(), problem.dilation.area()};
  if (std::ranges::find(sizes, 0u) != sizes.end()) wrong("every size must be at least 1");
  if (problem.height + problem.padding.height() < problem.window_height() ||
      problem.width + problem.padding.width() < problem.window_width())
    wrong("the kernel is larger than the image with its padding");
  if (problem.channels % block != 0 || problem.filters % block != 0)
    wrong(fmt::format("channels and filters must be multiples of {}", block));
  if (problem.has_wide_weights() && !problem.is_product()) wrong("only a 1x1 kernel's weights are written wide");
}

}  // namespace annulus::cuda
