#include "tests/unit/naive_operation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace annulus::test {
namespace {

struct Naive {
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& parameters;
  Tensor out;
  const Tensor& in = inputs.empty() ? out : inputs[0];

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
    Extent dilation = 1;
    if constexpr (requires { o.dilation; }) dilation = o.dilation;
    for (std::size_t i = 0; i < kernel.height; ++i)
      for (std::size_t j = 0; j < kernel.width; ++j) {
        const auto row = static_cast<long>(y * stride.height + i * dilation.height) - static_cast<long>(o.padding.top);
        const auto column =
            static_cast<long>(x * stride.width + j * dilation.width) - static_cast<long>(o.padding.left);
        if (row < 0 || column < 0 || row >= static_cast<long>(in.shape[2]) || column >= static_cast<long>(in.shape[3]))
          continue;
        visit(i, j, static_cast<std::size_t>(row), static_cast<std::size_t>(column));
      }
  }

  Tensor operator()(const Convolution& o) {
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double sum = o.bias ? parameters[1].values[c] : 0;
      const std::size_t each = in.shape[1] / o.groups, first = c / (o.channels / o.groups) * each;
      for (std::size_t from = 0; from < each; ++from)
        window(o, y, x, [&](std::size_t i, std::size_t j, std::size_t row, std::size_t column) {
          sum += at(parameters[0], c, from, i, j) * at(in, n, first + from, row, column);
        });
      return o.relu ? std::max(sum, 0.0) : sum;
    });
  }

  Tensor operator()(const Dense& o) {
    const std::size_t features = in.values.size() / in.shape[0];
    out.values.clear();
    for (std::size_t n = 0; n < in.shape[0]; ++n)
      for (std::size_t unit = 0; unit < o.units; ++unit) {
        double sum = o.bias ? parameters[1].values[unit] : 0;
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
      double sum = 0, pixels = 0;
      window(o, y, x, [&](std::size_t, std::size_t, std::size_t row, std::size_t column) {
        sum += at(in, n, c, row, column);
        ++pixels;
      });
      // Along one axis: the part of the window before the overhang.
      const auto covered = [](std::size_t begin, std::size_t size, std::size_t end) {
        return std::min(size, end - begin);
      };
      const Border& p = o.padding;
      if (o.count_padding)
        pixels = static_cast<double>(
            covered(y * o.stride.height, o.kernel.height, in.shape[2] + p.height() - o.overhang.height) *
            covered(x * o.stride.width, o.kernel.width, in.shape[3] + p.width() - o.overhang.width));
      return sum / pixels;
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

  Tensor operator()(const Concat& o) {
    out.values.clear();
    std::size_t outer = 1;
    for (std::size_t i = 0; i < o.axis; ++i) outer *= in.shape[i];
    for (std::size_t n = 0; n < outer; ++n)
      for (const Tensor& input : inputs) {
        const std::size_t size = input.values.size() / outer;
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

  // Calls visit(index, position) for all elements of a shape in row-major order.
  template <class Visit>
  static void for_each_index(const Shape& shape, const Visit& visit) {
    std::vector<std::size_t> index(shape.size(), 0);
    for (std::size_t position = 0; position < elements(shape); ++position) {
      visit(index, position);
      for (std::size_t i = shape.size(); i-- > 0 && ++index[i] == shape[i];) index[i] = 0;
    }
  }

  static std::size_t position(const Shape& shape, const std::vector<std::size_t>& index) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) at = at * shape[i] + index[i];
    return at;
  }

  // Every element of the output is input[from(index)].
  template <class From>
  Tensor moved(const From& from) {
    out.values.resize(elements(out.shape));
    for_each_index(out.shape, [&](std::vector<std::size_t> index, std::size_t to) { out.values[to] = from(index); });
    return out;
  }

  Tensor operator()(const TransposedConvolution& o) {
    out.values.assign(elements(out.shape), 0);
    const std::size_t group_inputs = in.shape[1] / o.groups, group_outputs = o.channels / o.groups;
    const auto add = [&](std::size_t n, std::size_t c, long y, long x, double value) {
      if (y >= 0 && x >= 0 && y < static_cast<long>(out.shape[2]) && x < static_cast<long>(out.shape[3]))
        out.values[position(out.shape, {n, c, static_cast<std::size_t>(y), static_cast<std::size_t>(x)})] += value;
    };
    for_each_index(in.shape, [&](const std::vector<std::size_t>& at_input, std::size_t from) {
      const std::size_t group = at_input[1] / group_inputs;
      for (std::size_t c = 0; c < group_outputs; ++c)
        for (std::size_t i = 0; i < o.kernel.height; ++i)
          for (std::size_t j = 0; j < o.kernel.width; ++j)
            add(at_input[0], group * group_outputs + c,
                static_cast<long>(at_input[2] * o.stride.height + i * o.dilation.height) -
                    static_cast<long>(o.padding.top),
                static_cast<long>(at_input[3] * o.stride.width + j * o.dilation.width) -
                    static_cast<long>(o.padding.left),
                in.values[from] * at(parameters[0], at_input[1], c, i, j));
    });
    if (o.bias)
      for_each_index(out.shape, [&](const std::vector<std::size_t>& index, std::size_t to) {
        out.values[to] += parameters[1].values[index[1]];
      });
    return out;
  }

  Tensor operator()(const Linear& o) {
    const std::size_t features = in.shape.back();
    return moved([&](std::vector<std::size_t> index) {
      const std::size_t unit = index.back();
      double sum = o.bias ? parameters[1].values[unit] : 0;
      for (std::size_t i = 0; i < features; ++i) {
        index.back() = i;
        sum += in.values[position(in.shape, index)] * parameters[0].values[unit * features + i];
      }
      return sum;
    });
  }

  Tensor operator()(const MatrixProduct&) {
    return moved([&](const std::vector<std::size_t>& index) {
      auto a = index, b = index;
      double sum = 0;
      for (std::size_t k = 0; k < in.shape.back(); ++k) {
        a.back() = b[b.size() - 2] = k;
        sum += in.values[position(in.shape, a)] * inputs[1].values[position(inputs[1].shape, b)];
      }
      return sum;
    });
  }

  // Of an element of a sample, whose key is in the second input.
  double factor(const Attention& o, std::size_t sample, std::size_t element) const {
    const auto key = static_cast<std::uint32_t>(static_cast<std::int32_t>(inputs[1].values[sample]));
    const bool dropped = static_cast<double>(mix(key, o.number, element) >> 32) < double{o.dropout} * 0x1p32;
    return dropped ? 0 : 1 / (1 - double{o.dropout});
  }

  Tensor operator()(const Attention& o) {
    const std::size_t length = in.shape[1], width = in.shape[2] / 3, each = width / o.heads;
    out.values.assign(elements(out.shape), 0);
    for (std::size_t n = 0; n < in.shape[0]; ++n)
      for (std::size_t query = 0; query < length; ++query)
        for (std::size_t head = 0; head < o.heads; ++head) {
          const auto value = [&](std::size_t token, std::size_t part, std::size_t i) {
            return in.values[((n * length + token) * 3 + part) * width + head * each + i];
          };
          double total = 0;
          double* to = &out.values[(n * length + query) * width + head * each];
          for (std::size_t key = 0; key < (o.causal ? query + 1 : length); ++key) {
            double score = 0;
            for (std::size_t i = 0; i < each; ++i) score += value(query, 0, i) * value(key, 1, i);
            const double weight = std::exp(score / std::sqrt(static_cast<double>(each)));
            total += weight;
            const double kept = o.dropout > 0 ? factor(o, n, (head * length + query) * length + key) : 1;
            for (std::size_t i = 0; i < each; ++i) to[i] += kept * weight * value(key, 2, i);
          }
          for (std::size_t i = 0; i < each; ++i) to[i] /= total;
        }
    return out;
  }

  Tensor operator()(const Mean& o) {
    std::vector<double> sums(elements(out.shape), 0);
    for_each_index(in.shape, [&](const std::vector<std::size_t>& index, std::size_t from) {
      std::vector<std::size_t> to;
      for (std::size_t i = 0; i < index.size(); ++i) {
        const bool reduced = std::ranges::find(o.axes, i) != o.axes.end();
        if (!reduced) to.push_back(index[i]);
        if (reduced && o.keep) to.push_back(0);
      }
      sums[position(out.shape, to)] += in.values[from];
    });
    for (double& sum : sums) sum *= static_cast<double>(sums.size()) / static_cast<double>(in.values.size());
    out.values = sums;
    return out;
  }

  // Normalizes `rows` parts of the input, each contiguous, and scales and shifts element i of a part by parameter
  // of(i).
  template <class Of>
  Tensor normalized(std::size_t size, double epsilon, const Of& of, bool shift = true, bool centred = true) {
    out.values.clear();
    for (std::size_t begin = 0; begin < in.values.size(); begin += size) {
      double mean = 0, variance = 0;
      for (std::size_t i = begin; centred && i < begin + size; ++i) mean += in.values[i] / static_cast<double>(size);
      for (std::size_t i = begin; i < begin + size; ++i)
        variance += std::pow(in.values[i] - mean, 2) / static_cast<double>(size);
      for (std::size_t i = begin; i < begin + size; ++i)
        out.values.push_back((in.values[i] - mean) / std::sqrt(variance + epsilon) * parameters[0].values[of(i)] +
                             (shift ? parameters[1].values[of(i)] : 0));
    }
    return out;
  }

  Tensor operator()(const LayerNorm& o) {
    const std::size_t size = parameters[0].values.size();
    return normalized(
        size, static_cast<double>(o.epsilon), [=](std::size_t i) { return i % size; }, o.shift, o.centred);
  }

  Tensor operator()(const GroupNorm& o) {
    const std::size_t channels = in.shape[1], pixels = in.values.size() / in.shape[0] / channels;
    return normalized(channels / o.groups * pixels, static_cast<double>(o.epsilon),
                      [=](std::size_t i) { return i / pixels % channels; });
  }

  Tensor operator()(const LocalResponseNorm& o) {
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      double squares = 0;
      for (std::size_t k = 0; k < o.size; ++k) {
        const std::size_t from = c + k - (o.size - 1) / 2;
        if (from < in.shape[1]) squares += std::pow(at(in, n, from, y, x), 2);
      }
      const double alpha = static_cast<double>(o.alpha) / static_cast<double>(o.size);
      return at(in, n, c, y, x) / std::pow(static_cast<double>(o.bias) + alpha * squares, static_cast<double>(o.beta));
    });
  }

  static double activation(const Activation& o, double x) {
    const double alpha = static_cast<double>(o.alpha), beta = static_cast<double>(o.beta);
    const auto sigmoid = [](double t) { return 1 / (1 + std::exp(-t)); };
    switch (o.function) {
      case Activation::Function::linear:
        return alpha * x + beta;
      case Activation::Function::clip:
        return std::min(std::max(x, alpha), beta);
      case Activation::Function::leaky_relu:
        return x < 0 ? alpha * x : x;
      case Activation::Function::elu:
        return x < 0 ? alpha * std::expm1(x) : x;
      case Activation::Function::sigmoid:
        return sigmoid(x);
      case Activation::Function::tanh:
        return std::tanh(x);
      case Activation::Function::silu:
        return x * sigmoid(x);
      case Activation::Function::gelu:
        return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
      case Activation::Function::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
      case Activation::Function::mish:
        return x * std::tanh(std::log1p(std::exp(x)));
      case Activation::Function::softplus:
        return std::log1p(std::exp(x));
      case Activation::Function::hard_sigmoid:
        return std::min(std::max(alpha * x + beta, 0.0), 1.0);
      case Activation::Function::hard_swish:
        return x * std::min(std::max(x / 6 + 0.5, 0.0), 1.0);
      case Activation::Function::absolute:
        return std::abs(x);
      case Activation::Function::exponential:
        return std::exp(x);
      case Activation::Function::logarithm:
        return std::log(x);
      case Activation::Function::square_root:
        return std::sqrt(x);
      case Activation::Function::square:
        return x * x;
      case Activation::Function::reciprocal:
        return 1 / x;
      case Activation::Function::sign:
        return x > 0 ? 1 : x < 0 ? -1 : 0;
    }
    fail("unknown function");
  }

  Tensor operator()(const Activation& o) {
    out.values.clear();
    for (const double x : in.values) out.values.push_back(activation(o, x));
    return out;
  }

  Tensor operator()(const PRelu& o) {
    return moved([&](const std::vector<std::size_t>& index) {
      const double x = in.values[position(in.shape, index)];
      return x < 0 ? x * parameters[0].values[o.per_channel ? index[1] : 0] : x;
    });
  }

  Tensor operator()(const Arithmetic& o) {
    const auto operand = [&](const Tensor& t, std::vector<std::size_t> index) {
      index.erase(index.begin(), index.end() - static_cast<long>(t.shape.size()));
      for (std::size_t i = 0; i < index.size(); ++i) index[i] %= t.shape[i];
      return t.values[position(t.shape, index)];
    };
    return moved([&](const std::vector<std::size_t>& index) {
      const double a = operand(inputs[0], index), b = operand(inputs[1], index);
      switch (o.op) {
        case Arithmetic::Operator::sum:
          return a + b;
        case Arithmetic::Operator::difference:
          return a - b;
        case Arithmetic::Operator::product:
          return a * b;
        case Arithmetic::Operator::quotient:
          return a / b;
        case Arithmetic::Operator::maximum:
          return std::max(a, b);
        case Arithmetic::Operator::greater:
          return a > b ? 1.0 : 0.0;
        case Arithmetic::Operator::at_least:
          return a >= b ? 1.0 : 0.0;
        case Arithmetic::Operator::equal:
          return a == b ? 1.0 : 0.0;
        case Arithmetic::Operator::choice:
          return b != 0 ? a : 0.0;
        case Arithmetic::Operator::minimum:
          break;
      }
      return std::min(a, b);
    });
  }

  Tensor operator()(const Maximum&) {
    const auto size = static_cast<std::ptrdiff_t>(in.shape.back());
    out.values.clear();
    for (auto row = in.values.begin(); row != in.values.end(); row += size)
      out.values.push_back(*std::max_element(row, row + size));
    return out;
  }

  Tensor operator()(const Softmax&) {
    const std::size_t size = in.shape.back();
    out.values.clear();
    for (std::size_t begin = 0; begin < in.values.size(); begin += size) {
      double sum = 0;
      for (std::size_t i = begin; i < begin + size; ++i) sum += std::exp(in.values[i]);
      for (std::size_t i = begin; i < begin + size; ++i) out.values.push_back(std::exp(in.values[i]) / sum);
    }
    return out;
  }

  Tensor operator()(const Reshape&) {
    out.values = in.values;
    return out;
  }

  Tensor operator()(const Transpose& o) {
    return moved([&](const std::vector<std::size_t>& index) {
      std::vector<std::size_t> from(index.size());
      for (std::size_t i = 0; i < index.size(); ++i) from[o.order[i]] = index[i];
      return in.values[position(in.shape, from)];
    });
  }

  Tensor operator()(const Slice& o) {
    return moved([&](std::vector<std::size_t> index) {
      index[o.axis] += o.begin;
      return in.values[position(in.shape, index)];
    });
  }

  Tensor operator()(const Gather& o) {
    return moved([&](std::vector<std::size_t> index) {
      index[o.axis] = o.indices[index[o.axis]];
      return in.values[position(in.shape, index)];
    });
  }

  Tensor operator()(const Pad& o) {
    return moved([&](std::vector<std::size_t> index) {
      for (std::size_t i = 0; i < index.size(); ++i)
        if ((index[i] -= o.before[i]) >= in.shape[i]) return static_cast<double>(o.value);
      return in.values[position(in.shape, index)];
    });
  }

  Tensor operator()(const Expand&) {
    return moved([&](std::vector<std::size_t> index) {
      for (std::size_t i = 0; i < index.size(); ++i) index[i] %= in.shape[i];
      return in.values[position(in.shape, index)];
    });
  }

  Tensor operator()(const Resize& o) {
    // One axis: the two neighbours and the weight of the second.
    using Rounding = Resize::Rounding;
    const auto sample = [&](std::size_t i, std::size_t pixels, std::size_t outputs, double scale) {
      const auto n = static_cast<double>(pixels), m = static_cast<double>(outputs), at_output = static_cast<double>(i);
      if (scale == 0) scale = m / n;
      double place = at_output / scale;
      if (o.coordinates == Resize::Coordinates::half_pixel) place = (at_output + 0.5) / scale - 0.5;
      if (o.coordinates == Resize::Coordinates::pytorch_half_pixel) place = m > 1 ? (at_output + 0.5) / scale - 0.5 : 0;
      if (o.coordinates == Resize::Coordinates::align_corners) place = m > 1 ? at_output * (n - 1) / (m - 1) : 0;
      if (!o.linear)
        place = o.rounding == Rounding::floor                ? std::floor(place)
                : o.rounding == Rounding::ceil               ? std::ceil(place)
                : o.rounding == Rounding::round_prefer_floor ? std::ceil(place - 0.5)
                                                             : std::floor(place + 0.5);
      place = std::min(std::max(place, 0.0), n - 1);
      const double first = std::floor(place);
      return std::tuple(static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(first + 1, n - 1)),
                        place - first);
    };
    return images([&](std::size_t n, std::size_t c, std::size_t y, std::size_t x) {
      const auto [top, bottom, down] = sample(y, in.shape[2], o.size.height, o.row_scale);
      const auto [left, right, across] = sample(x, in.shape[3], o.size.width, o.column_scale);
      return (1 - down) * ((1 - across) * at(in, n, c, top, left) + across * at(in, n, c, top, right)) +
             down * ((1 - across) * at(in, n, c, bottom, left) + across * at(in, n, c, bottom, right));
    });
  }

  Tensor operator()(const ComputedWeights& o) {
    const std::vector<Tensor> weights(inputs.begin() + 1, inputs.end());
    return std::visit([&](const auto& layer) { return naive_forward(layer, {in}, weights); }, o.layer);
  }

  Tensor operator()(const Learned&) {
    out.values = parameters[0].values;
    return out;
  }

  Tensor operator()(const Constant& o) {
    out.values.assign(o.values.begin(), o.values.end());
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
