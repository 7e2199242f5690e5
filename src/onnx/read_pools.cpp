#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/reader.h"
#include "src/onnx/windows.h"

namespace annulus {
namespace {

struct Windows {
  Extent kernel, stride;
  Border padding;
  Extent overhang;  // at the bottom and at the right, part of the padding
};

// Returns the rows that the last window needs beyond the padded input, if the window count is rounded up. As in
// PyTorch, a window does not begin in the padding at the end.
std::size_t overhang(std::size_t pixels, std::size_t kernel, std::size_t stride, std::size_t before,
                     std::size_t after) {
  const std::size_t padded = pixels + before + after;
  if (padded < kernel) return kernel - padded;
  std::size_t count = (padded - kernel + stride - 1) / stride + 1;
  if ((count - 1) * stride >= pixels + before) --count;
  const std::size_t wanted = (count - 1) * stride + kernel;
  return wanted > padded ? wanted - padded : 0;
}

// `in`: the images' shape; they may stand for the input's lines.
Windows windows(NodeReader& n, const Shape& in) {
  if (in.size() != 4) fail("its input of {} is not supported: use two-dimensional images", to_string(in));
  expect_windows(n.attributes, n.input_shape(0).size() - 2);
  if (!n.attributes.has("kernel_shape")) fail("it has no kernel_shape");
  if (extent(n.attributes, "dilations") != 1) fail("dilations are not supported: use a stride");
  Windows w{extent(n.attributes, "kernel_shape"), extent(n.attributes, "strides"), 0, 0};
  w.padding = border(n.attributes, in, w.kernel, w.stride, 1);
  if (n.attributes.whole("ceil_mode", 0) == 0) return w;
  w.overhang = {overhang(in[2], w.kernel.height, w.stride.height, w.padding.top, w.padding.bottom),
                overhang(in[3], w.kernel.width, w.stride.width, w.padding.left, w.padding.right)};
  w.padding.bottom += w.overhang.height;
  w.padding.right += w.overhang.width;
  return w;
}

// A window's maximum is the maximum of its rows' maxima: the same pixel, the first if equal.
Value max_pool(NodeReader& n, Value x, const Windows& w) {
  if (w.kernel.area() <= MaxPool::kMostPixels) return n.add(MaxPool{w.kernel, w.stride, w.padding}, {x});
  const Border& p = w.padding;
  const Value rows = n.add(MaxPool{{1, w.kernel.width}, {1, w.stride.width}, {0, p.left, 0, p.right}}, {x});
  return n.add(MaxPool{{w.kernel.height, 1}, {w.stride.height, 1}, {p.top, 0, p.bottom, 0}}, {rows});
}

// Returns each image's maximum. Long rows and columns are divided into windows, and their maxima again.
Value largest_pixel(NodeReader& n, Value x) {
  Shape in = n.shape(x);
  if (in[2] * in[3] <= MaxPool::kMostPixels) return n.add(MaxPool{{in[2], in[3]}, 1}, {x});
  const auto outside = [](std::size_t extent, std::size_t window) { return (window - extent % window) % window; };
  for (; in[3] > 1; in = n.shape(x)) {
    const std::size_t window = std::min(in[3], MaxPool::kMostPixels);
    x = n.add(MaxPool{{1, window}, {1, window}, {0, 0, 0, outside(in[3], window)}}, {x});
  }
  for (; in[2] > 1; in = n.shape(x)) {
    const std::size_t window = std::min(in[2], MaxPool::kMostPixels);
    x = n.add(MaxPool{{window, 1}, {window, 1}, {0, 0, outside(in[2], window), 0}}, {x});
  }
  return x;
}

void read_max_pool(NodeReader& n) {
  const Value x = n.as_images(n.value(0));
  if (n.used(1)) fail("the indices of its maxima are not supported");
  const Shape in = n.shape(x);
  const Windows w = windows(n, in);
  if (w.kernel == 1 && w.stride == 1) return n.set(n.value(0));
  const bool whole = w.kernel == Extent{in[2], in[3]} && w.padding == 0;
  n.set(n.from_images(whole ? largest_pixel(n, x) : max_pool(n, x, w), 0));
}

// Volumes' windows that extend along the depth alone, as in PyTorch's local response normalization: windows over images
// with a row for each depth.
Value average_of_depths(NodeReader& n, Value x) {
  const Shape in = n.shape(x);
  const auto kernel = n.attributes.wholes("kernel_shape");
  const auto are = [&](const char* name, std::int64_t value) {
    return std::ranges::all_of(n.attributes.wholes(name), [value](std::int64_t v) { return v == value; });
  };
  const bool plain =
      are("strides", 1) && are("pads", 0) && are("dilations", 1) && n.attributes.text("auto_pad", "NOTSET") == "NOTSET";
  if (kernel.size() != 3 || kernel[1] != 1 || kernel[2] != 1 || !plain)
    fail("its input of {} is not supported: use two-dimensional images", to_string(in));
  const std::size_t depth = checked_extent(kernel[0], "kernel_shape");
  if (depth > in[2]) fail("its kernel_shape of {} exceeds the depth of {}", depth, in[2]);
  const Value rows = n.reshape(x, {in[0], in[1], in[2], in[3] * in[4]});
  const Value pooled = n.add(AveragePool{{depth, 1}, 1}, {rows});
  return n.reshape(pooled, {in[0], in[1], in[2] - depth + 1, in[3], in[4]});
}

void read_average_pool(NodeReader& n) {
  if (n.input_shape(0).size() == 5) return n.set(average_of_depths(n, n.value(0)));
  const Value x = n.as_images(n.value(0));
  const Windows w = windows(n, n.shape(x));
  const bool count_padding = n.attributes.whole("count_include_pad", 0) != 0;
  if (w.kernel == 1 && w.stride == 1) return n.set(n.value(0));
  n.set(n.from_images(n.add(AveragePool{w.kernel, w.stride, w.padding, count_padding, w.overhang}, {x}), 0));
}

// Averages all pixels of images.
Value mean_image(NodeReader& n, Value x) {
  return n.add(AdaptiveAveragePool{1}, {x});
}

void read_global_average_pool(NodeReader& n) {
  const Value x = n.as_images(n.value(0));
  if (n.shape(x).size() != 4) fail("its input of {} is not supported: use images", n.text(x));
  n.set(n.from_images(mean_image(n, x), 0));
}

void read_global_max_pool(NodeReader& n) {
  const Value x = n.as_images(n.value(0));
  if (n.shape(x).size() != 4) fail("its input of {} is not supported: use images", n.text(x));
  n.set(n.from_images(largest_pixel(n, x), 0));
}

struct Reduction {
  std::vector<std::size_t> axes;  // ascending
  bool keep;
  std::size_t elements;  // in a mean or sum
};

Reduction reduction(NodeReader& n, Value x) {
  const Shape in = n.shape(x);
  Reduction r{{}, n.attributes.whole("keepdims", 1) != 0, 1};
  for (const std::int64_t axis : n.wholes_or(1, "axes")) r.axes.push_back(checked_axis(axis, in.size()));
  std::ranges::sort(r.axes);
  if (r.axes.empty()) {
    if (n.builder().batch(x)) fail("a reduction over all dimensions is not supported: keep the batch");
    for (std::size_t axis = 0; axis < in.size(); ++axis) r.axes.push_back(axis);
  }
  for (const std::size_t axis : r.axes) {
    n.expect_not_batch(x, axis);
    r.elements *= in[axis];
  }
  return r;
}

// The mean over all dimensions is a number.
Value mean_of(NodeReader& n, Value x, const Reduction& r) {
  const bool number = !r.keep && r.axes.size() == n.shape(x).size();
  const Value made = n.add(Mean{r.axes, r.keep || number}, {x});
  return number ? n.reshape(made, {}) : made;
}

Value mean(NodeReader& n, Value x, const Reduction& r) {
  const auto place = n.builder().batch(x);
  if (n.shape(x).size() != 4 || r.axes != std::vector<std::size_t>{2, 3} || !place || place->axis != 0)
    return mean_of(n, x, r);
  const Value pooled = mean_image(n, x);
  return r.keep ? pooled : n.reshape(pooled, {n.shape(x)[0], n.shape(x)[1]});
}

void read_mean(NodeReader& n) {
  const Value x = n.value(0);
  n.set(mean(n, x, reduction(n, x)));
}

Value sum_of(NodeReader& n, Value x, const Reduction& r) {
  return n.linear(mean(n, x, r), static_cast<double>(r.elements), 0);
}

// Sums the functions' values.
template <Activation::Function... function>
void read_sum(NodeReader& n) {
  const Value x = n.value(0);
  Value summed = x;
  ((summed = n.function(function, summed)), ...);
  n.set(sum_of(n, summed, reduction(n, x)));
}

// Returns the maximum over dimensions, which are moved to the end and joined.
Value largest(NodeReader& n, Value x, const Reduction& r) {
  const Shape in = n.shape(x);
  std::vector<std::size_t> order;
  Shape joined, kept, removed;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool removes = std::ranges::find(r.axes, i) != r.axes.end();
    kept.push_back(removes ? 1 : in[i]);
    if (removes) continue;
    order.push_back(i);
    joined.push_back(in[i]);
  }
  removed = joined;
  order.insert(order.end(), r.axes.begin(), r.axes.end());
  joined.push_back(r.elements);
  const auto place = n.builder().batch(x);
  const auto at = [&](bool keep) -> std::optional<std::size_t> {
    if (!place || keep) return place ? std::optional(place->axis) : std::nullopt;
    return static_cast<std::size_t>(std::ranges::find(order, place->axis) - order.begin());
  };
  const Value reduced = n.add(Maximum{}, {n.reshape(n.transpose(x, order), joined, at(false))});
  return n.reshape(reduced, r.keep ? kept : removed, at(r.keep));
}

void read_max(NodeReader& n) {
  const Value x = n.value(0);
  n.set(largest(n, x, reduction(n, x)));
}

void read_min(NodeReader& n) {
  const Value x = n.value(0);
  const Reduction r = reduction(n, x);
  n.set(n.linear(largest(n, n.linear(x, -1, 0), r), -1, 0));
}

// Subtracting the largest element keeps exponentials finite.
void read_log_sum_exp(NodeReader& n) {
  const Value x = n.value(0);
  Reduction r = reduction(n, x);
  const bool keep = std::exchange(r.keep, true);
  const Value most = largest(n, x, r);
  const Value from_most = n.combine(Arithmetic::Operator::difference, x, most);
  const Value summed = sum_of(n, n.function(Activation::Function::exponential, from_most), r);
  const Value made = n.combine(Arithmetic::Operator::sum, n.function(Activation::Function::logarithm, summed), most);
  n.set(keep ? made : n.squeeze(made, r.axes));
}

// The Euclidean length. For zeros it is tiny, so that the gradient is finite: 0, as in PyTorch.
void read_l2(NodeReader& n) {
  const Value x = n.value(0);
  const Reduction r = reduction(n, x);
  const Value squares = n.function(Activation::Function::square, x);
  const Value sum = n.linear(mean_of(n, squares, r), static_cast<double>(r.elements), 0);
  const Value positive = n.function(Activation::Function::clip, sum, 1e-30f, std::numeric_limits<float>::max());
  n.set(n.function(Activation::Function::square_root, positive));
}

}  // namespace

Value NodeReader::as_images(Value x) {
  const Shape in = shape(x);
  return in.size() == 3 ? reshape(x, {in[0], in[1], 1, in[2]}, 0) : x;
}

Value NodeReader::from_images(Value images, std::size_t input) {
  const Shape out = shape(images);
  return input_shape(input).size() == 3 ? reshape(images, {out[0], out[1], out[3]}, 0) : images;
}

void add_pools(ReadNodes& all) {
  all["MaxPool"] = read_max_pool;
  all["AveragePool"] = read_average_pool;
  all["GlobalAveragePool"] = read_global_average_pool;
  all["GlobalMaxPool"] = read_global_max_pool;
  all["ReduceMean"] = read_mean;
  all["ReduceSum"] = read_sum<>;
  all["ReduceL1"] = read_sum<Activation::Function::absolute>;
  all["ReduceSumSquare"] = read_sum<Activation::Function::square>;
  all["ReduceLogSumExp"] = read_log_sum_exp;
  all["ReduceL2"] = read_l2;
  all["ReduceMax"] = read_max;
  all["ReduceMin"] = read_min;
}

}  // namespace annulus
