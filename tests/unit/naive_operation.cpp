#include "tests/unit/naive_operation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"

namespace annulus::test {
namespace {

struct Naive {
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& parameters;
  Tensor out;
  const Tensor& in = inputs[0];

  static double at(const Tensor& t, std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
    return t.values[((n * t.shape[1] + c) * t.shape[2] + y) * t.shape[3] + x];
  }

  // Calls make(n, c, y, x) for every output in row-major order.
  template <class Make>
  Tensor images(const Make& make) {
    out.values.clear();
    for (std::size_t n = 0; n < out.shape[0]; ++n)
      for (std::size_t c = 0; c < out.shape[1]; ++c)
        for (std::size_t y = 0; y < out.shape[2]; ++y)
          for (std::size_t x = 0; x < out.shape[3]; ++x) out.values.push_back(make(n, c, y, x));
    return out;
  }

  // Calls visit(kernel row, kernel column, row, column) for the pixels of a window that lie in the image.
  template <class Window, class Visit>
  void window(const Window& o, std::size_t y, std::size_t x, const Visit& visit) const {
    const Extent kernel = o.kernel, stride = o.stride;
    for (std::size_t i = 0; i < kernel.height; ++i)
      for (std::size_t j = 0; j < kernel.width; ++j) {
        const auto row = static_cast<long>(y * stride.height + i) - static_cast<long>(o.padding.top);
        const auto column = static_cast<long>(x * stride.width + j) - static_cast<long>(o.padding.left);
        if (row < 0 || column < 0 || row >= static_cast<long>(in.shape[2]) || column >= static_cast<long>(in.shape[3]))
          continue;
        visit(i, j, static_cast<std::size_t>(row), static_cast<std::size_t>(column));
      }
  }

  Tensor operator()(const Convolution& o) {
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double sum = o.bias ? parameters[1].values[c] : 0;
      for (std::size_t from = 0; from < in.shape[1]; ++from)
        window(o, y, x, [&](std::size_t i, std::size_t j, std::size_t row, std::size_t column) {
          sum += at(parameters[0], c, from, i, j) * at(in, n, from, row, column);
        });
      return o.relu ? std::max(sum, 0.0) : sum;
    });
  }

  Tensor operator()(const Dense& o) {
    const std::size_t features = in.values.size() / in.shape[0];
    out.values.clear();
    for (std::size_t n = 0; n < in.shape[0]; ++n)
      for (std::size_t unit = 0; unit < o.units; ++unit) {
        double sum = parameters[1].values[unit];
        for (std::size_t i = 0; i < features; ++i)
          sum += parameters[0].values[unit * features + i] * in.values[n * features + i];
        out.values.push_back(o.relu ? std::max(sum, 0.0) : sum);
      }
    return out;
  }

  Tensor operator()(const MaxPool& o) {
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double best = -std::numeric_limits<double>::infinity();
      window(o, y, x, [&](std::size_t, std::size_t, std::size_t row, std::size_t column) {
        best = std::max(best, at(in, n, c, row, column));
      });
      return o.relu ? std::max(best, 0.0) : best;
    });
  }

  Tensor operator()(const AveragePool& o) {
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double sum = 0;
      window(o, y, x,
             [&](std::size_t, std::size_t, std::size_t row, std::size_t column) { sum += at(in, n, c, row, column); });
      return sum / static_cast<double>(o.kernel.area());
    });
  }

  Tensor operator()(const AdaptiveAveragePool& o) {
    // The bounds of a part, as in PyTorch.
    const auto begin = [](std::size_t i, std::size_t outputs, std::size_t pixels) {
      return static_cast<std::size_t>(std::floor(static_cast<double>(i * pixels) / static_cast<double>(outputs)));
    };
    const auto end = [](std::size_t i, std::size_t outputs, std::size_t pixels) {
      return static_cast<std::size_t>(std::ceil(static_cast<double>((i + 1) * pixels) / static_cast<double>(outputs)));
    };
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double sum = 0, count = 0;
      for (std::size_t row = begin(y, o.size.height, in.shape[2]); row < end(y, o.size.height, in.shape[2]); ++row)
        for (std::size_t column = begin(x, o.size.width, in.shape[3]); column < end(x, o.size.width, in.shape[3]);
             ++column, ++count)
          sum += at(in, n, c, row, column);
      return sum / count;
    });
  }

  Tensor operator()(const Concat&) {
    out.values.clear();
    for (std::size_t n = 0; n < in.shape[0]; ++n)
      for (const Tensor& input : inputs) {
        const std::size_t size = input.values.size() / in.shape[0];
        out.values.insert(out.values.end(), input.values.begin() + static_cast<long>(n * size),
                          input.values.begin() + static_cast<long>((n + 1) * size));
      }
    return out;
  }

  Tensor operator()(const BatchNorm& o) {
    std::vector<double> mean(in.shape[1]), variance(in.shape[1]);
    const auto count = static_cast<double>(in.values.size() / in.shape[1]);
    const std::size_t area = in.shape[2] * in.shape[3];
    const auto channel = [&](std::size_t i) { return i / area % in.shape[1]; };
    for (std::size_t i = 0; i < in.values.size(); ++i) mean[channel(i)] += in.values[i] / count;
    for (std::size_t i = 0; i < in.values.size(); ++i)
      variance[channel(i)] += std::pow(in.values[i] - mean[channel(i)], 2) / count;
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      const double normalized = (at(in, n, c, y, x) - mean[c]) / std::sqrt(variance[c] + o.epsilon);
      const double made =
          parameters[0].values[c] * normalized + parameters[1].values[c] + (o.add ? at(inputs[1], n, c, y, x) : 0);
      return o.relu ? std::max(made, 0.0) : made;
    });
  }

  Tensor operator()(const Relu&) {
    out.values = in.values;
    for (double& value : out.values) value = std::max(value, 0.0);
    return out;
  }

  Tensor operator()(const Add&) {
    out.values = in.values;
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] += inputs[1].values[i];
    return out;
  }

  Tensor operator()(const auto&) { fail("not in plain loops"); }
};

}  // namespace

Tensor naive_forward(const Operation& operation, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& parameters) {
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape);
  return std::visit(Naive{inputs, parameters, {output_shape(operation, shapes), {}}}, operation);
}

}  // namespace annulus::test
