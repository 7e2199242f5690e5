#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/linear_map.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

// Looks up an attribute's name in a table.
template <class Choice>
Choice one_of(const NodeReader& n, const char* attribute, const char* missing,
              const std::map<std::string_view, Choice>& all) {
  const std::string name = n.attributes.text(attribute, missing);
  const auto found = all.find(name);
  if (found == all.end()) fail("its {} \"{}\" is not supported: use {}", attribute, name, missing);
  return found->second;
}

Resize::Coordinates coordinates(const NodeReader& n) {
  using enum Resize::Coordinates;
  return one_of<Resize::Coordinates>(n, "coordinate_transformation_mode", "half_pixel",
                                     {{"half_pixel", half_pixel},
                                      {"pytorch_half_pixel", pytorch_half_pixel},
                                      {"align_corners", align_corners},
                                      {"asymmetric", asymmetric}});
}

Resize::Rounding rounding(const NodeReader& n) {
  using enum Resize::Rounding;
  return one_of<Resize::Rounding>(n, "nearest_mode", "round_prefer_floor",
                                  {{"round_prefer_floor", round_prefer_floor},
                                   {"round_prefer_ceil", round_prefer_ceil},
                                   {"floor", floor},
                                   {"ceil", ceil}});
}

// The output's shape, by the inputs scales or sizes, which are for the dimensions `axes`.
struct ResizedShape {
  Shape out;
  std::vector<float> scales;  // for each dimension; 0: output / input
};

ResizedShape output_size(NodeReader& n, const Shape& in) {
  std::vector<std::int64_t> axes = n.attributes.wholes("axes");
  if (axes.empty())
    for (std::size_t i = 0; i < in.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
  const bool by_size = n.has(3);
  const HostTensor& given = n.expect_constant(by_size ? 3 : 2);
  ResizedShape size{in, std::vector<float>(in.size(), by_size ? 0.0f : 1.0f)};
  if (given.size() != axes.size() || given.real() == by_size)
    fail("its {} must be for {} dimensions", by_size ? "sizes" : "scales", axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = checked_axis(axes[i], in.size());
    if (!by_size && !(given.at(i) > 0)) fail("its scales must be positive");
    if (!by_size) size.scales[axis] = static_cast<float>(given.at(i));
    const double extent = by_size ? given.at(i) : std::floor(static_cast<float>(in[axis]) * size.scales[axis]);
    size.out[axis] = static_cast<std::size_t>(std::clamp(extent, 0.0, 0x1p20));
    if (size.out[axis] == 0) fail("its output has no elements");
  }
  if (size.out[0] != in[0] || size.out[1] != in[1]) fail("only rows and columns can be resized");
  return size;
}

// Resizing a dimension as a linear map.
struct Interpolation {
  Resize::Coordinates coordinates;
  bool cubic, antialias, exclude_outside;
  double a;  // the cubic's coefficient
};

// Returns the input coordinate for output i.
double source(const Interpolation& how, std::size_t i, std::size_t in, std::size_t out, double scale) {
  using enum Resize::Coordinates;
  const auto at = static_cast<double>(i);
  if (how.coordinates == asymmetric) return at / scale;
  if (how.coordinates == align_corners)
    return out == 1 ? 0 : at * static_cast<double>(in - 1) / static_cast<double>(out - 1);
  if (how.coordinates == pytorch_half_pixel && out == 1) return 0;
  return (at + 0.5) / scale - 0.5;
}

// Keys, "Cubic convolution interpolation for digital image processing", 1981; or the linear interpolation.
double weight(const Interpolation& how, double distance) {
  const double d = std::fabs(distance), a = how.a;
  if (!how.cubic) return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// {in, out}: column i has output i's weights. Places outside the input count as the border, or are excluded.
HostTensor resize_matrix(const Interpolation& how, std::size_t in, std::size_t out, double scale) {
  if (in > kMostConstantElements / out) fail("the resizing of {} elements to {} is too large", in, out);
  HostTensor matrix = real_numbers({in, out}, std::vector<double>(in * out, 0));
  const double width = how.antialias ? std::max(1.0, 1 / scale) : 1;  // a pixel's
  const bool exclude = how.antialias || how.exclude_outside;
  const double reach = std::min(width * (how.cubic ? 2 : 1), 0x1p20);
  for (std::size_t i = 0; i < out; ++i) {
    const double center = source(how, i, in, out, scale);
    double sum = 0;
    for (double place = std::floor(center - reach); place <= std::ceil(center + reach); ++place) {
      const double last = static_cast<double>(in - 1), inside = std::clamp(place, 0.0, last);
      const double w = exclude && inside != place ? 0 : weight(how, (place - center) / width);
      matrix.reals[static_cast<std::size_t>(inside) * out + i] += w;
      sum += w;
    }
    for (std::size_t k = 0; sum != 0 && k < in; ++k) matrix.reals[k * out + i] /= sum;
  }
  return matrix;
}

// Resizes what the operation Resize does not cover: cubic, with antialias, and values other than images.
Value mapped(NodeReader& n, Value x, bool cubic, const ResizedShape& size) {
  const Shape in = n.shape(x);
  const Interpolation how{coordinates(n), cubic, n.attributes.whole("antialias", 0) != 0,
                          n.attributes.whole("exclude_outside", 0) != 0, n.attributes.real("cubic_coeff_a", -0.75f)};
  for (std::size_t axis = 2; axis < in.size(); ++axis) {
    const double ratio = static_cast<double>(size.out[axis]) / static_cast<double>(in[axis]);
    const double scale = size.scales[axis] > 0 ? size.scales[axis] : ratio;
    if (size.out[axis] == in[axis] && scale == 1) continue;
    x = mapped(n, x, axis, resize_matrix(how, in[axis], size.out[axis], scale));
  }
  return x;
}

void read_resize(NodeReader& n) {
  const Value x = n.value(0);
  const Shape in = n.shape(x);
  const std::string mode = n.attributes.text("mode", "nearest");
  if (mode != "nearest" && mode != "linear" && mode != "cubic")
    fail("the mode \"{}\" is not supported: use nearest, linear or cubic", mode);
  if (n.attributes.text("keep_aspect_ratio_policy", "stretch") != "stretch")
    fail("a keep_aspect_ratio_policy is not supported: give sizes");
  if (in.size() < 3) fail("its input of {} is not supported: use images", to_string(in));
  const ResizedShape size = output_size(n, in);
  const bool antialias = n.attributes.whole("antialias", 0) != 0;
  if (mode == "cubic" || (mode == "linear" && (antialias || in.size() != 4)))
    return n.set(mapped(n, x, mode == "cubic", size));
  if (in.size() != 4) fail("its input of {} is not supported: use images", to_string(in));
  const Resize resize{
      {size.out[2], size.out[3]}, mode == "linear", coordinates(n), rounding(n), size.scales[2], size.scales[3]};
  const auto same = [](float scale) { return scale == 0 || scale == 1; };
  const bool nothing = resize.size == Extent{in[2], in[3]} && same(resize.row_scale) && same(resize.column_scale);
  n.set(nothing ? x : n.add(resize, {x}));
}

}  // namespace

void add_resizes(ReadNodes& all) {
  all["Resize"] = read_resize;
}

}  // namespace annulus
