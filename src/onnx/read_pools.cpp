#include <algorithm>
#include <limits>

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

// Rows that the last window needs beyond the padded input, if the number of windows is rounded up. As in PyTorch, a
// window does not begin in the padding at the end.
std::size_t overhang(std::size_t pixels, std::size_t kernel, std::size_t stride, std::size_t before,
                     std::size_t after) {
  const std::size_t padded = pixels + before + after;
  if (padded < kernel) return kernel - padded;
  std::size_t count = (padded - kernel + stride - 1) / stride + 1;
  if ((count - 1) * stride >= pixels + before) --count;
  const std::size_t wanted = (count - 1) * stride + kernel;
  return wanted > padded ? wanted - padded : 0;
}

Windows windows(NodeReader& n, const Shape& in) {
  if (in.size() != 4) fail("its input of {} is not supported: use two-dimensional images", to_string(in));
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

void read_max_pool(NodeReader& n) {
  const Value x = n.value(0);
  if (n.used(1)) fail("the indices of its maxima are not supported");
  const Windows w = windows(n, n.shape(x));
  n.set(w.kernel == 1 && w.stride == 1 ? x : n.add(MaxPool{w.kernel, w.stride, w.padding}, {x}));
}

// Windows of volumes that extend along the depth alone, as in PyTorch's local response normalization. They are windows
// of images with a row for each depth.
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
  const Value x = n.value(0);
  if (n.shape(x).size() == 5) return n.set(average_of_depths(n, x));
  const Windows w = windows(n, n.shape(x));
  const bool count_padding = n.attributes.whole("count_include_pad", 0) != 0;
  n.set(w.kernel == 1 && w.stride == 1
            ? x
            : n.add(AveragePool{w.kernel, w.stride, w.padding, count_padding, w.overhang}, {x}));
}

// The mean over all pixels of images.
Value mean_image(NodeReader& n, Value x) {
  return n.add(AdaptiveAveragePool{1}, {x});
}

void read_global_average_pool(NodeReader& n) {
  const Value x = n.value(0);
  if (n.shape(x).size() != 4) fail("its input of {} is not supported: use images", n.text(x));
  n.set(mean_image(n, x));
}

void read_global_max_pool(NodeReader& n) {
  const Value x = n.value(0);
  const Shape in = n.shape(x);
  if (in.size() != 4) fail("its input of {} is not supported: use images", to_string(in));
  n.set(n.add(MaxPool{{in[2], in[3]}, 1}, {x}));
}

struct Reduction {
  std::vector<std::size_t> axes;  // ascending
  bool keep;
  std::size_t elements;  // whose mean or sum is computed
};

Reduction reduction(NodeReader& n, Value x) {
  const Shape in = n.shape(x);
  Reduction r{{}, n.attributes.whole("keepdims", 1) != 0, 1};
  for (const std::int64_t axis : n.wholes_or(1, "axes")) r.axes.push_back(checked_axis(axis, in.size()));
  std::ranges::sort(r.axes);
  if (r.axes.empty()) {
    if (n.draft().batch(x)) fail("a reduction over all dimensions is not supported: keep the batch");
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
  const auto place = n.draft().batch(x);
  if (n.shape(x).size() != 4 || r.axes != std::vector<std::size_t>{2, 3} || !place || place->axis != 0)
    return mean_of(n, x, r);
  const Value pooled = mean_image(n, x);
  return r.keep ? pooled : n.reshape(pooled, {n.shape(x)[0], n.shape(x)[1]});
}

void read_mean(NodeReader& n) {
  const Value x = n.value(0);
  n.set(mean(n, x, reduction(n, x)));
}

void read_sum(NodeReader& n) {
  const Value x = n.value(0);
  const Reduction r = reduction(n, x);
  n.set(n.linear(mean(n, x, r), static_cast<double>(r.elements), 0));
}

// The Euclidean length. That of zeros is tiny, so that its gradient is finite; as in PyTorch, it is 0.
void read_l2(NodeReader& n) {
  const Value x = n.value(0);
  const Reduction r = reduction(n, x);
  const Value squares = n.function(Activation::Function::square, x);
  const Value sum = n.linear(mean_of(n, squares, r), static_cast<double>(r.elements), 0);
  const Value positive = n.function(Activation::Function::clip, sum, 1e-30f, std::numeric_limits<float>::max());
  n.set(n.function(Activation::Function::square_root, positive));
}

}  // namespace

void add_pools(ReadNodes& all) {
  all["MaxPool"] = read_max_pool;
  all["AveragePool"] = read_average_pool;
  all["GlobalAveragePool"] = read_global_average_pool;
  all["GlobalMaxPool"] = read_global_max_pool;
  all["ReduceMean"] = read_mean;
  all["ReduceSum"] = read_sum;
  all["ReduceL2"] = read_l2;
}

}  // namespace annulus
