#include "src/onnx/write.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <set>

#include "kernels/average_windows.h"
#include "kernels/base/error.h"
#include "src/io/bytes.h"
#include "src/onnx/marks.h"

namespace annulus {
namespace {

constexpr const char *kImages = "images", *kTokens = "tokens";
constexpr const char *kLogits = "logits", *kProbabilities = "probabilities", *kValues = "values";
constexpr const char* kBatch = "batch";

// protobuf's limit for messages, minus 1 MiB for the graph's description.
constexpr std::size_t kMostParameterBytes = (std::size_t{1} << 31) - (std::size_t{1} << 20);

std::size_t parameter_bytes(const Graph& graph) {
  std::size_t bytes = 0;
  for (const Node& node : graph.nodes())
    for (const ParameterDeclaration& p : graph.parameters(node))
      bytes += p.role == Role::metric ? 0 : elements(p.shape) * sizeof(float);
  return bytes;
}

onnx::AttributeProto& attribute(onnx::NodeProto& node, const char* name, onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(type);
  return attribute;
}

void set(onnx::NodeProto& node, const char* name, std::int64_t value) {
  attribute(node, name, onnx::AttributeProto::INT).set_i(value);
}

void set(onnx::NodeProto& node, const char* name, float value) {
  attribute(node, name, onnx::AttributeProto::FLOAT).set_f(value);
}

void set(onnx::NodeProto& node, const char* name, const char* value) {
  attribute(node, name, onnx::AttributeProto::STRING).set_s(value);
}

void set(onnx::NodeProto& node, const char* name, const std::vector<std::size_t>& values) {
  onnx::AttributeProto& list = attribute(node, name, onnx::AttributeProto::INTS);
  for (const std::size_t value : values) list.add_ints(static_cast<std::int64_t>(value));
}

template <class Windows>
void set_windows(onnx::NodeProto& node, const Windows& o) {
  set(node, "kernel_shape", {o.kernel.height, o.kernel.width});
  set(node, "strides", {o.stride.height, o.stride.width});
  set(node, "pads", {o.padding.top, o.padding.left, o.padding.bottom, o.padding.right});
}

void set_pads(onnx::NodeProto& node, const Border& padding) {
  for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
    if (attribute.name() != "pads") continue;
    attribute.clear_ints();
    for (const std::size_t side : {padding.top, padding.left, padding.bottom, padding.right})
      attribute.add_ints(static_cast<std::int64_t>(side));
  }
}

// Describes an input or output; the first dimension is the batch.
void describe(onnx::ValueInfoProto& value, const std::string& name, onnx::TensorProto::DataType type,
              const Shape& shape) {
  value.set_name(name);
  onnx::TypeProto::Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(type);
  tensor.mutable_shape()->add_dim()->set_dim_param(kBatch);
  for (std::size_t i = 1; i < shape.size(); ++i)
    tensor.mutable_shape()->add_dim()->set_dim_value(static_cast<std::int64_t>(shape[i]));
}

// Row y has the weights for the pixels that output y averages; transposed for columns.
std::vector<float> mean_matrix(const AverageAxis& axis, std::size_t pixels, bool transposed) {
  const std::size_t outputs = axis.windows.size();
  std::vector<float> matrix(outputs * pixels);
  for (std::size_t y = 0; y < outputs; ++y)
    for (std::size_t x = axis.windows[y].begin; x < axis.windows[y].end; ++x)
      matrix[transposed ? x * outputs + y : y * pixels + x] = axis.factors[y];
  return matrix;
}

// Names an ONNX graph's values. Inputs and outputs keep their names, then parameters have the graph's names, then
// layers; others are numbered.
class ValueNames {
 public:
  explicit ValueNames(const Graph& graph) {
    for (const Node& node : graph.nodes())
      for (const ParameterDeclaration& p : graph.parameters(node)) add(parameters_, parameter_name(node, p.name));
    for (const Node& node : graph.nodes()) add(layers_, node.name);
  }

  const std::string& parameter(const std::string& name) const { return parameters_.at(name); }
  const std::string& layer(const std::string& name) const { return layers_.at(name); }

  std::string unique(const std::string& wanted) {
    std::string name = wanted;
    for (int number = 2; !taken_.insert(name).second; ++number) name = fmt::format("{}_{}", wanted, number);
    return name;
  }

 private:
  void add(std::map<std::string, std::string>& to, const std::string& name) {
    if (const auto [place, added] = to.try_emplace(name); added) place->second = unique(name);
  }

  std::set<std::string> taken_{kImages, kTokens, kLogits, kProbabilities, kValues};
  std::map<std::string, std::string> parameters_, layers_;
};

const char* input_name(const Graph& graph) {
  return graph.reads_tokens() ? kTokens : kImages;
}

// Appends a graph's nodes to an ONNX graph. operator() translates the current node's operation and returns the output's
// name.
class Translation {
 public:
  Translation(const Graph& graph, const ParameterValues& values, onnx::GraphProto& to)
      : graph_(graph), values_(values), to_(to), value_names_(graph), names_{input_name(graph), "", ""} {}

  void run() {
    for (const Node& node : graph_.nodes()) {
      node_ = &node;
      parts_.clear();
      shapes_ = graph_.input_shapes(node, 1);
      names_.push_back(std::visit(*this, node.operation));
    }
  }

  std::string operator()(const ImageInput& o) {
    set(add("Cast", {input(0)}, name(".float")), "to", std::int64_t{onnx::TensorProto::FLOAT});
    set(add("Transpose", {name(".float")}, name(".planes")), "perm", {0, 3, 1, 2});
    std::vector<float> scale, shift;
    for (std::size_t c = 0; c < o.mean.size(); ++c) {
      scale.push_back(1 / (255 * o.stddev[c]));
      shift.push_back(-o.mean[c] / o.stddev[c]);
    }
    const Shape per_channel{scale.size(), 1, 1};
    add("Mul", {name(".planes"), constant(name(".scale"), per_channel, scale)}, name(".scaled"));
    add("Add", {name(".scaled"), constant(name(".shift"), per_channel, shift)}, name());
    return name();
  }

  std::string operator()(const Convolution& o) {
    onnx::NodeProto& node = add("Conv", with_parameters(input(0)), name());
    set_windows(node, o);
    set(node, "dilations", {o.dilation.height, o.dilation.width});
    set(node, "group", static_cast<std::int64_t>(o.groups));
    return fused(o);
  }

  std::string operator()(const Dense& o) {
    std::string vector = input(0);
    if (shapes_[0].size() > 2) {
      vector = name(".vector");
      set(add("Flatten", {input(0)}, vector), "axis", std::int64_t{1});
    }
    set(add("Gemm", with_parameters(vector), name()), "transB", std::int64_t{1});
    return fused(o);
  }

  std::string operator()(const MaxPool& o) {
    set_windows(add("MaxPool", {input(0)}, name()), o);
    return fused(o);
  }

  std::string operator()(const AveragePool& o) {
    onnx::NodeProto& node = add("AveragePool", {input(0)}, name());
    set_windows(node, o);
    set(node, "count_include_pad", std::int64_t{o.count_padding});
    if (o.overhang == Extent{0}) return name();
    const Border& p = o.padding;
    set_pads(node, {p.top, p.left, p.bottom - o.overhang.height, p.right - o.overhang.width});
    set(node, "ceil_mode", std::int64_t{1});
    return name();
  }

  // ONNX supports only the mean over all pixels. Other means are products with a matrix on each side.
  std::string operator()(const AdaptiveAveragePool& o) {
    const Shape& in = shapes_[0];
    if (o.size == Extent{in[2], in[3]}) return input(0);
    if (o.size == Extent{1}) {
      add("GlobalAveragePool", {input(0)}, name());
      return name();
    }
    const AverageWindows windows = average_windows(o, in);
    const std::string rows =
        constant(name(".of_rows"), {o.size.height, in[2]}, mean_matrix(windows.rows, in[2], false));
    const std::string columns =
        constant(name(".of_columns"), {in[3], o.size.width}, mean_matrix(windows.columns, in[3], true));
    add("MatMul", {rows, input(0)}, name(".rows"));
    add("MatMul", {name(".rows"), columns}, name());
    return name();
  }

  std::string operator()(const BatchNorm& o) {
    onnx::NodeProto& node = add("BatchNormalization", with_parameters(input(0)), name());
    set(node, "epsilon", o.epsilon);
    set(node, "momentum", 1 - o.momentum);
    return fused(o);
  }

  std::string operator()(const Relu&) {
    add("Relu", {input(0)}, name());
    return name();
  }

  std::string operator()(const Add&) {
    add("Add", {input(0), input(1)}, name());
    return name();
  }

  std::string operator()(const Concat& o) {
    std::vector<std::string> inputs;
    for (std::size_t i = 0; i < node_->inputs.size(); ++i) inputs.push_back(input(i));
    set(add("Concat", inputs, name()), "axis", static_cast<std::int64_t>(o.axis));
    return name();
  }

  std::string operator()(const Dropout&) { return input(0); }

  std::string operator()(const SoftmaxCrossEntropy&) {
    add("Identity", {input(0)}, kLogits);
    set(add("Softmax", {kLogits}, kProbabilities), "axis", std::int64_t{1});
    return describe_outputs({kLogits, kProbabilities});
  }

  std::string operator()(const BinaryCrossEntropy&) { return sigmoids(); }
  std::string operator()(const MultiLabelCrossEntropy&) { return sigmoids(); }

  std::string operator()(const MeanSquaredError&) {
    add("Identity", {input(0)}, kValues);
    return describe_outputs({kValues});
  }

  std::string operator()(const TransposedConvolution& o) {
    onnx::NodeProto& node = add("ConvTranspose", with_parameters(input(0)), name());
    set_windows(node, o);
    set(node, "dilations", {o.dilation.height, o.dilation.width});
    set(node, "output_padding", {o.extra.height, o.extra.width});
    set(node, "group", static_cast<std::int64_t>(o.groups));
    return name();
  }

  std::string operator()(const Linear& o) {
    const auto inputs = with_parameters(input(0));
    set(add("Transpose", {inputs[1]}, name(".transposed")), "perm", {1, 0});
    const std::string product = o.bias ? name(".product") : name();
    add("MatMul", {inputs[0], name(".transposed")}, product);
    if (o.bias) add("Add", {product, inputs[2]}, name());
    return name();
  }

  std::string operator()(const MatrixProduct&) { return simple("MatMul"); }

  // Queries, keys and values as {batch, heads, length, width / heads}, and these matrices' products.
  std::string operator()(const Attention& o) {
    const auto length = static_cast<std::int64_t>(shapes_[0][1]), width = static_cast<std::int64_t>(shapes_[0][2] / 3);
    const auto heads = static_cast<std::int64_t>(o.heads), each = width / heads;
    const auto part = [&](const std::string& suffix, std::int64_t number, const std::vector<std::size_t>& order) {
      add("Slice",
          {input(0), wholes(suffix + ".begin", {number * width}), wholes(suffix + ".end", {(number + 1) * width}),
           wholes(suffix + ".axis", {2})},
          name(suffix + ".tokens"));
      reshape(name(suffix + ".tokens"), {0, length, heads, each}, name(suffix + ".by_token"));
      set(add("Transpose", {name(suffix + ".by_token")}, name(suffix)), "perm", order);
      return name(suffix);
    };
    add("Mul", {part(".queries", 0, {0, 2, 1, 3}), number(".scale", 1 / std::sqrt(static_cast<float>(each)))},
        name(".scaled"));
    add("MatMul", {name(".scaled"), part(".keys", 1, {0, 2, 3, 1})}, name(".products"));
    std::string scores = name(".products");
    if (o.causal) {
      const Shape square{shapes_[0][1], shapes_[0][1]};
      std::vector<float> mask(elements(square), 0);
      for (std::size_t i = 0; i < mask.size(); ++i)
        if (i % square[1] > i / square[1]) mask[i] = -std::numeric_limits<float>::infinity();
      scores = add("Add", {scores, constant(name(".mask"), square, mask)}, name(".masked")).output(0);
    }
    set(add("Softmax", {scores}, name(".weights")), "axis", std::int64_t{-1});
    add("MatMul", {name(".weights"), part(".values", 2, {0, 2, 1, 3})}, name(".by_head"));
    set(add("Transpose", {name(".by_head")}, name(".joined")), "perm", {0, 2, 1, 3});
    return reshape(name(".joined"), {0, length, width}, name());
  }

  // Only in graphs that generate text.
  std::string operator()(const CachedAttention&) { fail("cached attention cannot be written as ONNX"); }

  std::string operator()(const Mean& o) {
    onnx::NodeProto& node = add("ReduceMean", {input(0)}, name());
    set(node, "axes", o.axes);
    set(node, "keepdims", std::int64_t{o.keep});
    return name();
  }

  std::string operator()(const LayerNorm& o) {
    if (!o.centred) return root_mean_square_norm(o);
    onnx::NodeProto& node = add("LayerNormalization", with_parameters(input(0)), name());
    set(node, "axis", static_cast<std::int64_t>(o.axis));
    set(node, "epsilon", o.epsilon);
    return name();
  }

  // Normalizes each group like a channel, then scales and shifts each channel.
  std::string operator()(const GroupNorm& o) {
    if (o.groups == shapes_[0][1]) {
      set(add("InstanceNormalization", with_parameters(input(0)), name()), "epsilon", o.epsilon);
      return name();
    }
    const std::vector<float> ones(o.groups, 1), zeros(o.groups, 0);
    reshape(input(0), {0, static_cast<std::int64_t>(o.groups), -1}, name(".groups"));
    const std::string scale = constant(name(".ones"), {o.groups}, ones);
    const std::string shift = constant(name(".zeros"), {o.groups}, zeros);
    set(add("InstanceNormalization", {name(".groups"), scale, shift}, name(".normalized")), "epsilon", o.epsilon);
    reshape(name(".normalized"), with_batch(shapes_[0]), name(".channels"));
    add("Mul", {name(".channels"), per_channel(0)}, name(".scaled"));
    add("Add", {name(".scaled"), per_channel(1)}, name());
    return name();
  }

  std::string operator()(const LocalResponseNorm& o) {
    onnx::NodeProto& node = add("LRN", {input(0)}, name());
    set(node, "size", static_cast<std::int64_t>(o.size));
    set(node, "alpha", o.alpha);
    set(node, "beta", o.beta);
    set(node, "bias", o.bias);
    return name();
  }

  std::string operator()(const Activation& o) {
    using enum Activation::Function;
    switch (o.function) {
      case linear:
        add("Mul", {input(0), number(".alpha", o.alpha)}, name(".scaled"));
        add("Add", {name(".scaled"), number(".beta", o.beta)}, name());
        return name();
      case clip:
        add("Clip", {input(0), number(".least", o.alpha), number(".most", o.beta)}, name());
        return name();
      case leaky_relu:
        set(add("LeakyRelu", {input(0)}, name()), "alpha", o.alpha);
        return name();
      case elu:
        set(add("Elu", {input(0)}, name()), "alpha", o.alpha);
        return name();
      case sigmoid:
        return simple("Sigmoid");
      case tanh:
        return simple("Tanh");
      case silu:
        add("Sigmoid", {input(0)}, name(".gate"));
        add("Mul", {input(0), name(".gate")}, name());
        return name();
      case gelu:
        add("Mul", {input(0), number(".scale", std::numbers::sqrt2_v<float> / 2)}, name(".scaled"));
        add("Erf", {name(".scaled")}, name(".erf"));
        add("Add", {name(".erf"), number(".one", 1)}, name(".gate"));
        add("Mul", {input(0), name(".gate")}, name(".twice"));
        add("Mul", {name(".twice"), number(".half", 0.5f)}, name());
        return name();
      case gelu_tanh:
        return gelu_by_tanh();
      case mish:
        add("Softplus", {input(0)}, name(".softplus"));
        add("Tanh", {name(".softplus")}, name(".gate"));
        add("Mul", {input(0), name(".gate")}, name());
        return name();
      case softplus:
        return simple("Softplus");
      case hard_sigmoid: {
        onnx::NodeProto& node = add("HardSigmoid", {input(0)}, name());
        set(node, "alpha", o.alpha);
        set(node, "beta", o.beta);
        return name();
      }
      case hard_swish:
        return simple("HardSwish");
      case absolute:
        return simple("Abs");
      case exponential:
        return simple("Exp");
      case logarithm:
        return simple("Log");
      case square_root:
        return simple("Sqrt");
      case square:
        add("Mul", {input(0), input(0)}, name());
        return name();
      case reciprocal:
        return simple("Reciprocal");
      case sign:
        return simple("Sign");
    }
    return name();
  }

  std::string operator()(const PRelu&) {
    add("PRelu", {input(0), per_channel(0)}, name());
    return name();
  }

  std::string operator()(const Arithmetic& o) {
    using enum Arithmetic::Operator;
    static const std::map<Arithmetic::Operator, const char*> types{
        {sum, "Add"},     {difference, "Sub"}, {product, "Mul"},     {quotient, "Div"},
        {maximum, "Max"}, {minimum, "Min"},    {greater, "Greater"}, {at_least, "GreaterOrEqual"},
        {equal, "Equal"}};
    if (o.op == choice) {
      set(add("Cast", {input(1)}, name(".truth")), "to", std::int64_t{onnx::TensorProto::BOOL});
      return add("Where", {name(".truth"), input(0), number(".zero", 0)}, name()).output(0);
    }
    if (o.op != greater && o.op != at_least && o.op != equal) return simple(types.at(o.op));
    add(types.at(o.op), {input(0), input(1)}, name(".truth"));
    set(add("Cast", {name(".truth")}, name()), "to", std::int64_t{onnx::TensorProto::FLOAT});
    return name();
  }

  std::string operator()(const Maximum&) {
    set(add("ReduceMax", {input(0)}, name()), "axes", std::vector{shapes_[0].size() - 1});
    return name();
  }

  std::string operator()(const Softmax&) {
    set(add("Softmax", {input(0)}, name()), "axis", std::int64_t{-1});
    return name();
  }

  std::string operator()(const Reshape& o) {
    std::vector<std::int64_t> shape;
    for (const std::size_t extent : o.shape)
      shape.push_back(extent == Reshape::kInferred ? -1 : static_cast<std::int64_t>(extent));
    return reshape(input(0), shape, name());
  }

  std::string operator()(const Transpose& o) {
    set(add("Transpose", {input(0)}, name()), "perm", o.order);
    return name();
  }

  std::string operator()(const Slice& o) {
    const auto begin = static_cast<std::int64_t>(o.begin), size = static_cast<std::int64_t>(o.size);
    add("Slice",
        {input(0), wholes(".begin", {begin}), wholes(".end", {begin + size}),
         wholes(".axis", {static_cast<std::int64_t>(o.axis)})},
        name());
    return name();
  }

  std::string operator()(const Gather& o) {
    const std::vector<std::int64_t> indices(o.indices.begin(), o.indices.end());
    set(add("Gather", {input(0), wholes(".indices", indices)}, name()), "axis", static_cast<std::int64_t>(o.axis));
    return name();
  }

  std::string operator()(const Pad& o) {
    std::vector<std::int64_t> pads(o.before.begin(), o.before.end());
    pads.insert(pads.end(), o.after.begin(), o.after.end());
    add("Pad", {input(0), wholes(".pads", pads), number(".value", o.value)}, name());
    return name();
  }

  // The batch is read from the second input's shape.
  std::string operator()(const Expand& o) {
    std::vector<std::string> extents;
    for (const std::size_t extent : o.shape) {
      const std::string at = fmt::format(".extent{}", extents.size());
      if (extent == Expand::kBatch) {
        onnx::NodeProto& shape = add("Shape", {input(1)}, name(at + ".batch"));
        set(shape, "end", std::int64_t{1});
        extents.push_back(shape.output(0));
      } else {
        extents.push_back(wholes(at, {static_cast<std::int64_t>(extent)}));
      }
    }
    set(add("Concat", extents, name(".extents")), "axis", std::int64_t{0});
    add("Expand", {input(0), name(".extents")}, name());
    return name();
  }

  std::string operator()(const Resize& o) {
    using enum Resize::Coordinates;
    using enum Resize::Rounding;
    static const std::map<Resize::Coordinates, const char*> coordinates{{half_pixel, "half_pixel"},
                                                                        {pytorch_half_pixel, "pytorch_half_pixel"},
                                                                        {align_corners, "align_corners"},
                                                                        {asymmetric, "asymmetric"}};
    static const std::map<Resize::Rounding, const char*> roundings{{round_prefer_floor, "round_prefer_floor"},
                                                                   {round_prefer_ceil, "round_prefer_ceil"},
                                                                   {floor, "floor"},
                                                                   {ceil, "ceil"}};
    std::vector<std::string> inputs{input(0), ""};
    if (o.row_scale > 0) {
      inputs.push_back(constant(name(".scales"), {4}, std::array{1.0f, 1.0f, o.row_scale, o.column_scale}));
    } else {
      const auto height = static_cast<std::int64_t>(o.size.height), width = static_cast<std::int64_t>(o.size.width);
      set(add("Shape", {input(0)}, name(".images")), "end", std::int64_t{2});
      set(add("Concat", {name(".images"), wholes(".size", {height, width})}, name(".sizes")), "axis", std::int64_t{0});
      inputs.insert(inputs.end(), {"", name(".sizes")});
    }
    onnx::NodeProto& node = add("Resize", inputs, name());
    set(node, "mode", o.linear ? "linear" : "nearest");
    set(node, "coordinate_transformation_mode", coordinates.at(o.coordinates));
    set(node, "nearest_mode", roundings.at(o.rounding));
    return name();
  }

  std::string operator()(const ComputedWeights& o) {
    return std::visit([&](const auto& layer) { return (*this)(layer); }, o.layer);
  }

  std::string operator()(const Learned& o) {
    const std::string stored = initializer(o.parameter, o.output_shape({}), o.shape);
    return o.shape.empty() ? reshape(stored, {1}, name(".value")) : stored;
  }

  std::string operator()(const Constant& o) { return constant(name(), o.shape, o.values); }

  std::string operator()(const TokenEmbedding& o) {
    const Shape table{o.vocabulary, o.width};
    return add("Gather", {initializer("weight", table, table), input(0)}, name()).output(0);
  }

  std::string operator()(const PositionEmbedding& o) {
    const Shape table{o.positions, shapes_[0][2]};
    std::vector<std::int64_t> positions(shapes_[0][1]);
    std::iota(positions.begin(), positions.end(), 0);
    add("Gather", {initializer("weight", table, table), wholes(".positions", positions)}, name(".rows"));
    return add("Add", {input(0), name(".rows")}, name()).output(0);
  }

  std::string operator()(const LanguageModelHead& o) {
    const Shape table{o.vocabulary, shapes_[0][2]};
    set(add("Transpose", {initializer("weight", table, table)}, name(".transposed")), "perm", {1, 0});
    add("MatMul", {input(0), name(".transposed")}, o.bias ? name(".products") : kLogits);
    if (o.bias) add("Add", {name(".products"), initializer("bias", {o.vocabulary}, {o.vocabulary})}, kLogits);
    describe(*to_.add_output(), kLogits, onnx::TensorProto::FLOAT, {1, shapes_[0][1], o.vocabulary});
    return "";
  }

 private:
  // In parts: RMSNormalization is an operator from set 23 on.
  std::string root_mean_square_norm(const LayerNorm& o) {
    add("Mul", {input(0), input(0)}, name(".squares"));
    onnx::NodeProto& mean = add("ReduceMean", {name(".squares")}, name(".mean"));
    std::vector<std::size_t> axes;
    for (std::size_t axis = o.axis; axis < shapes_[0].size(); ++axis) axes.push_back(axis);
    set(mean, "axes", axes);
    add("Add", {name(".mean"), number(".epsilon", o.epsilon)}, name(".sum"));
    add("Sqrt", {name(".sum")}, name(".root"));
    add("Div", {input(0), name(".root")}, name(".normalized"));
    const auto parameters = with_parameters(name(".normalized"));
    add("Mul", {parameters[0], parameters[1]}, o.shift ? name(".scaled") : name());
    if (o.shift) add("Add", {name(".scaled"), parameters[2]}, name());
    return name();
  }

  std::string sigmoids() {
    add("Identity", {input(0)}, kLogits);
    add("Sigmoid", {kLogits}, kProbabilities);
    return describe_outputs({kLogits, kProbabilities});
  }

  std::string describe_outputs(std::initializer_list<const char*> outputs) {
    for (const char* output : outputs) describe(*to_.add_output(), output, onnx::TensorProto::FLOAT, shapes_[0]);
    return "";
  }

  std::string name() const { return value_names_.layer(node_->name); }

  // Returns a value's name within the layer, the same for the same suffix.
  std::string name(const std::string& suffix) {
    const auto [part, added] = parts_.try_emplace(suffix);
    if (added) part->second = value_names_.unique(node_->name + suffix);
    return part->second;
  }

  std::string input(std::size_t i) const { return names_[node_->inputs[i]]; }

  onnx::NodeProto& add(const char* type, const std::vector<std::string>& inputs, const std::string& output) {
    onnx::NodeProto& node = *to_.add_node();
    node.set_op_type(type);
    node.set_name(output);
    for (const std::string& value : inputs) node.add_input(value);
    node.add_output(output);
    return node;
  }

  // The addition and the ReLU that were fused into the operation.
  template <class Fused>
  std::string fused(const Fused& o) {
    std::string made = name();
    if constexpr (requires { o.add; })
      if (o.add) made = add("Add", {made, input(1)}, name(".add")).output(0);
    if (o.relu) made = add("Relu", {made}, name(".relu")).output(0);
    return made;
  }

  std::string simple(const char* type) {
    std::vector<std::string> inputs;
    for (std::size_t i = 0; i < node_->inputs.size(); ++i) inputs.push_back(input(i));
    return add(type, inputs, name()).output(0);
  }

  std::string gelu_by_tanh() {
    const float scale = std::sqrt(2 / std::numbers::pi_v<float>);
    add("Mul", {input(0), input(0)}, name(".square"));
    add("Mul", {name(".square"), number(".cubic", 0.044715f * scale)}, name(".factor"));
    add("Add", {name(".factor"), number(".linear", scale)}, name(".slope"));
    add("Mul", {input(0), name(".slope")}, name(".inner"));
    add("Tanh", {name(".inner")}, name(".tanh"));
    add("Add", {name(".tanh"), number(".one", 1)}, name(".gate"));
    add("Mul", {input(0), name(".gate")}, name(".twice"));
    add("Mul", {name(".twice"), number(".half", 0.5f)}, name());
    return name();
  }

  std::string reshape(const std::string& value, const std::vector<std::int64_t>& shape, const std::string& output) {
    const std::string extents = shape_constant(value_names_.unique(output + ".shape"), shape);
    return add("Reshape", {value, extents}, output).output(0);
  }

  // Returns a shape for reshaping, with the first dimension copied: the batch.
  static std::vector<std::int64_t> with_batch(const Shape& shape) {
    std::vector<std::int64_t> extents(shape.begin(), shape.end());
    extents[0] = 0;
    return extents;
  }

  static onnx::TensorProto tensor(onnx::TensorProto::DataType type, const Shape& shape,
                                  std::span<const std::byte> bytes) {
    onnx::TensorProto tensor;
    tensor.set_data_type(type);
    for (const std::size_t extent : shape) tensor.add_dims(static_cast<std::int64_t>(extent));
    tensor.set_raw_data(bytes.data(), bytes.size());
    return tensor;
  }

  // Stores the node's parameter, declared in a shape, in another shape. The first node that shares it stores it.
  std::string initializer(const std::string& parameter, const Shape& declared, const Shape& shape) {
    const auto is_among = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, parameter) != names.end();
    };
    const std::string called = parameter_name(*node_, parameter);
    if (const auto [first, added] = stored_.try_emplace(called, shape); !added) {
      const std::string& there = value_names_.parameter(called);
      const std::vector<std::int64_t> extents(shape.begin(), shape.end());
      return first->second == shape ? there : reshape(there, extents, name("." + parameter));
    }
    const std::span<const float> values = values_(called, declared);
    if (is_among(node_->constants)) return constant(value_names_.parameter(called), shape, values);
    onnx::TensorProto& stored = *to_.add_initializer();
    stored = tensor(onnx::TensorProto::FLOAT, shape, std::as_bytes(values));
    stored.set_name(value_names_.parameter(called));
    if (is_among(node_->frozen)) add_buffer_mark(stored.name(), shape);
    return stored.name();
  }

  void add_buffer_mark(const std::string& tensor, const Shape& shape) {
    onnx::ValueInfoProto& value = *to_.add_value_info();
    value.set_name(tensor);
    onnx::TypeProto::Tensor& type = *value.mutable_type()->mutable_tensor_type();
    type.set_elem_type(onnx::TensorProto::FLOAT);
    for (const std::size_t extent : shape)
      type.mutable_shape()->add_dim()->set_dim_value(static_cast<std::int64_t>(extent));
    mark_buffer(value);
  }

  // Constants are nodes, so that readers can distinguish them from parameters.
  std::string constant_node(const std::string& called, const onnx::TensorProto& value) {
    *attribute(add("Constant", {}, called), "value", onnx::AttributeProto::TENSOR).mutable_t() = value;
    return called;
  }

  std::string constant(const std::string& called, const Shape& shape, std::span<const float> floats) {
    return constant_node(called, tensor(onnx::TensorProto::FLOAT, shape, std::as_bytes(floats)));
  }

  std::string number(const std::string& suffix, float value) {
    return constant(name(suffix), {}, std::span(&value, 1));
  }

  std::string shape_constant(const std::string& called, const std::vector<std::int64_t>& values) {
    return constant_node(called, tensor(onnx::TensorProto::INT64, {values.size()}, std::as_bytes(std::span(values))));
  }

  std::string wholes(const std::string& suffix, const std::vector<std::int64_t>& values) {
    return shape_constant(name(suffix), values);
  }

  bool computed_weights() const { return std::holds_alternative<ComputedWeights>(node_->operation); }

  // An input followed by the node's parameters. A dense layer's weights are reshaped to a matrix.
  std::vector<std::string> with_parameters(const std::string& first) {
    std::vector<std::string> inputs{first};
    if (computed_weights())
      for (std::size_t i = 1; i < node_->inputs.size(); ++i) inputs.push_back(input(i));
    for (const ParameterDeclaration& p : parameters(node_->operation, shapes_)) {
      const bool matrix = std::holds_alternative<Dense>(node_->operation) && p.shape.size() > 1;
      const Shape shape = matrix ? Shape{p.shape[0], elements(p.shape) / p.shape[0]} : p.shape;
      inputs.push_back(initializer(p.name, p.shape, shape));
    }
    return inputs;
  }

  // Returns a parameter with a value for each channel, in a shape that is repeated over all pixels.
  std::string per_channel(std::size_t parameter) {
    Shape shape(shapes_[0].size() - 1, 1);
    if (computed_weights()) {
      std::vector<std::int64_t> extents(shape.begin(), shape.end());
      extents[0] = -1;
      return reshape(input(parameter + 1), extents, value_names_.unique(node_->name + ".per_channel"));
    }
    const ParameterDeclaration p = parameters(node_->operation, shapes_)[parameter];
    shape[0] = p.shape[0];
    return initializer(p.name, p.shape, shape);
  }

  const Graph& graph_;
  const ParameterValues& values_;
  onnx::GraphProto& to_;
  ValueNames value_names_;
  std::map<std::string, Shape> stored_;       // parameters
  std::vector<std::string> names_;            // the graph's values'
  const Node* node_ = nullptr;                // the current node
  std::map<std::string, std::string> parts_;  // names within it, by suffix
  std::vector<Shape> shapes_;                 // the node's input shapes, for a batch of one
};

}  // namespace

std::string to_onnx(const std::string& name, const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& metadata) {
  if (const std::size_t bytes = parameter_bytes(graph); bytes > kMostParameterBytes)
    fail("{} has {} of parameters, but an ONNX file can hold at most 2 GiB", name, format_bytes(bytes));
  onnx::ModelProto model;
  model.set_ir_version(kOnnxFormat);
  model.add_opset_import()->set_version(kOnnxOperators);
  model.set_producer_name("annulus");
  model.set_producer_version(ANNULUS_VERSION);
  for (const auto& [key, value] : metadata) {
    onnx::StringStringEntryProto& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::GraphProto& to = *model.mutable_graph();
  to.set_name(name);
  if (graph.reads_tokens())
    describe(*to.add_input(), input_name(graph), onnx::TensorProto::INT64, {1, graph.tokens().length});
  else
    describe(*to.add_input(), input_name(graph), onnx::TensorProto::UINT8, graph.shapes(1)[Graph::kImages]);
  Translation(graph, values, to).run();
  return model.SerializeAsString();
}

}  // namespace annulus
