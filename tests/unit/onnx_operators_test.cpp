#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/onnx_outputs.h"

// The operators that PyTorch's newer exporter writes, beside their definitions and PyTorch's values.
namespace annulus {
namespace {

using test::OnnxModel;
using test::Wholes;
using Values = std::vector<float>;

Values outputs(const OnnxModel& model, const std::vector<std::uint8_t>& pixels) {
  OnnxFile file = model.file();
  file.set_pixels(Pixels::normalized);  // with the mean and std that outputs() gives
  return test::outputs(file, pixels);
}

void check(const Values& found, const Values& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-4));
  }
}

// The pixels 0 30 200 / 10 255 90, on which a node computes a.
struct SixPixels {
  OnnxModel model{{-1, 1, 2, 3}};

  void expect(const Values& expected) {
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, {0, 30, 200, 10, 255, 90}), expected);
  }
};

TEST_CASE("Comparisons of ONNX files choose between computed values") {
  SixPixels t;
  t.model.number("bound", 30).node("Neg", {"x"}, {"minus"});
  const auto choose = [&](const std::string& op, const Values& expected) {
    t.model.node(op, {"x", "bound"}, {"c"}).node("Where", {"c", "x", "minus"}, {"a"});
    t.expect(expected);
  };
  SECTION("greater") {
    choose("Greater", {0, -30, 200, -10, 255, 90});
  }
  SECTION("greater or equal") {
    choose("GreaterOrEqual", {0, 30, 200, -10, 255, 90});
  }
  SECTION("less") {
    choose("Less", {0, -30, -200, 10, -255, -90});
  }
  SECTION("less or equal") {
    choose("LessOrEqual", {0, 30, -200, 10, -255, -90});
  }
  SECTION("equal") {
    choose("Equal", {0, 30, -200, -10, -255, -90});
  }
}

TEST_CASE("Truths of ONNX files are combined") {
  SixPixels t;
  t.model.number("low", 30).number("high", 100).node("Greater", {"x", "low"}, {"p"}).node("Less", {"x", "high"}, {"q"});
  const auto combine = [&](const std::string& op, const Values& expected) {
    t.model.node(op, {"p", "q"}, {"c"}).node("Cast", {"c"}, {"a"}, {{"to", 1}});
    t.expect(expected);
  };
  SECTION("and") {
    combine("And", {0, 0, 0, 0, 0, 1});
  }
  SECTION("or") {
    combine("Or", {1, 1, 1, 1, 1, 1});
  }
  SECTION("xor") {
    combine("Xor", {1, 1, 1, 1, 1, 0});
  }
  SECTION("not") {
    t.model.node("Not", {"p"}, {"c"}).node("Cast", {"c"}, {"a"}, {{"to", 1}});
    t.expect({1, 1, 0, 1, 0, 0});
  }
  SECTION("converted from numbers") {
    t.model.node("Cast", {"x"}, {"c"}, {{"to", 9}}).node("Cast", {"c"}, {"a"}, {{"to", 1}});
    t.expect({0, 1, 1, 1, 1, 1});
  }
}

TEST_CASE("A branch that is not chosen may be infinite or undefined") {
  SixPixels t;
  t.model.number("zero", 0).number("one", 1).node("Sub", {"x", "one"}, {"less"}).node("Log", {"less"}, {"log"});
  t.model.node("Greater", {"less", "zero"}, {"c"});
  SECTION("by a comparison") {
    t.model.node("Where", {"c", "log", "x"}, {"a"});
    t.expect({0, std::log(29.0f), std::log(199.0f), std::log(9.0f), std::log(254.0f), std::log(89.0f)});
  }
  SECTION("found by its values") {
    t.model.node("IsNaN", {"log"}, {"nan"}).node("Where", {"nan", "zero", "log"}, {"a"});
    t.expect({0, std::log(29.0f), std::log(199.0f), std::log(9.0f), std::log(254.0f), std::log(89.0f)});
  }
  SECTION("found as infinite") {
    t.model.node("Reciprocal", {"x"}, {"r"}).node("IsInf", {"r"}, {"inf"}).node("Where", {"inf", "x", "r"}, {"a"});
    t.expect({0, 1.0f / 30, 1.0f / 200, 0.1f, 1.0f / 255, 1.0f / 90});
  }
}

TEST_CASE("The softmax of rows that are all masked is zero") {
  SixPixels t;
  const float low = -std::numeric_limits<float>::infinity();
  t.model.tensor<float>("mask", {2, 3}, {low, low, low, 0, low, 0}).number("zero", 0).number("scale", 0.01f);
  t.model.node("Mul", {"x", "scale"}, {"s"}).node("Add", {"s", "mask"}, {"m"});
  t.model.node("Softmax", {"m"}, {"p"}).node("IsNaN", {"p"}, {"nan"}).node("Where", {"nan", "zero", "p"}, {"a"});
  const float other = std::exp(0.8f);
  t.expect({0, 0, 0, 1 / (1 + other), 0, other / (1 + other)});
}

TEST_CASE("Activations of ONNX files with thresholds") {
  SixPixels t;
  t.model.number("mean", 50).node("Sub", {"x", "mean"}, {"d"}).number("scale", 0.1f);
  t.model.node("Mul", {"d", "scale"}, {"b"});  // -5 -2 15 -4 20.5 4
  const auto apply = [&](const std::string& op, const test::AttributeValues& attributes, const Values& expected) {
    t.model.node(op, {"b"}, {"a"}, attributes);
    t.expect(expected);
  };
  SECTION("thresholded relu") {
    apply("ThresholdedRelu", {{"alpha", 4.5f}}, {0, 0, 15, 0, 20.5f, 0});
  }
  SECTION("hard shrink") {
    apply("Shrink", {{"lambd", 4.5f}}, {-5, 0, 15, 0, 20.5f, 0});
  }
  SECTION("soft shrink") {
    apply("Shrink", {{"lambd", 3.0f}, {"bias", 3.0f}}, {-2, 0, 12, -1, 17.5f, 1});
  }
  SECTION("celu") {
    const auto celu = [](float x) { return 2 * std::expm1(x / 2); };
    apply("Celu", {{"alpha", 2.0f}}, {celu(-5), celu(-2), 15, celu(-4), 20.5f, 4});
  }
  SECTION("softsign") {
    apply("Softsign", {}, {-5.0f / 6, -2.0f / 3, 15.0f / 16, -0.8f, 20.5f / 21.5f, 0.8f});
  }
  SECTION("sign") {
    apply("Sign", {}, {-1, -1, 1, -1, 1, 1});
  }
  SECTION("swish") {
    const auto swish = [](float x) { return x / (1 + std::exp(-2 * x)); };
    apply("Swish", {{"alpha", 2.0f}}, {swish(-5), swish(-2), 15, swish(-4), 20.5f, swish(4)});
  }
}

TEST_CASE("Maxima and minima of ONNX files over dimensions") {
  SixPixels t;
  SECTION("of columns, kept") {
    t.model.node("ReduceMax", {"x"}, {"a"}, {{"axes", Wholes{2}}});
    t.expect({10, 255, 200});
  }
  SECTION("of rows") {
    t.model.node("ReduceMin", {"x"}, {"a"}, {{"axes", Wholes{-1}}, {"keepdims", 0}});
    t.expect({0, 10});
  }
  SECTION("of images") {
    t.model.node("ReduceMax", {"x"}, {"a"}, {{"axes", Wholes{1, 2, 3}}, {"keepdims", 0}}).node("Flatten", {"a"}, {"b"});
    t.model.node("Concat", {"b", "b"}, {"y"}, {{"axis", 1}});
    check(outputs(t.model, {0, 30, 200, 10, 255, 90}), {255, 255});
  }
}

TEST_CASE("Sums of functions over dimensions in ONNX files") {
  SixPixels t;
  t.model.number("mean", 100).node("Sub", {"x", "mean"}, {"d"});  // -100 -70 100 / -90 155 -10
  SECTION("of absolute values") {
    t.model.node("ReduceL1", {"d"}, {"a"}, {{"axes", Wholes{3}}});
    t.expect({270, 255});
  }
  SECTION("of squares") {
    t.model.node("ReduceSumSquare", {"d"}, {"a"}, {{"axes", Wholes{2}}, {"keepdims", 0}});
    t.expect({18100, 28925, 10100});
  }
  SECTION("logarithms of sums of exponentials") {
    t.model.node("ReduceLogSumExp", {"d"}, {"a"}, {{"axes", Wholes{3}}});
    t.expect({100, 155});
  }
  SECTION("logarithms of sums of exponentials, without the dimensions") {
    t.model.number("scale", 0.01f).node("Mul", {"d", "scale"}, {"b"});
    t.model.node("ReduceLogSumExp", {"b"}, {"a"}, {{"axes", Wholes{-1, 2}}, {"keepdims", 0}});
    float sum = 0;
    for (const float d : {-1.0f, -0.7f, 1.0f, -0.9f, 1.55f, -0.1f}) sum += std::exp(d);
    t.model.node("Concat", {"a", "a"}, {"both"}, {{"axis", 1}}).node("Identity", {"both"}, {"y"});
    check(outputs(t.model, {0, 30, 200, 10, 255, 90}), {std::log(sum), std::log(sum)});
  }
}

// Element c of channel 0 and 1 of images of 2 rows and 3 columns is a volume's element, and the volumes have one
// channel.
TEST_CASE("Convolutions of volumes, whose windows have one element of a dimension, are those of its images") {
  const std::size_t flat = GENERATE(0, 1, 2);
  CAPTURE(flat);
  OnnxModel model({-1, 2, 2, 3});
  model.tensor<std::int64_t>("to", {5}, {-1, 1, 2, 2, 3}).node("Reshape", {"x", "to"}, {"volume"});
  Wholes kernel{2, 2, 2}, pads{0, 0, 0, 1, 1, 1};
  kernel[flat] = 1;
  pads[3 + flat] = 0;
  model.tensor<float>("conv.weight", {1, 1, kernel[0], kernel[1], kernel[2]}, {1, 10, 100, 1000});
  model.tensor<float>("conv.bias", {1}, {0.5f});
  model.node("Conv", {"volume", "conv.weight", "conv.bias"}, {"a"}, {{"kernel_shape", kernel}, {"pads", pads}});
  model.node("Flatten", {"a"}, {"y"});
  const std::vector<std::uint8_t> pixels{1, 7, 2, 8, 3, 9, 4, 1, 5, 2, 6, 3};  // channels last
  const auto at = [&](std::size_t a, std::size_t b, std::size_t c) {
    return a < 2 && b < 2 && c < 3 ? static_cast<float>(pixels[(b * 3 + c) * 2 + a]) : 0;
  };
  Values expected;
  for (std::size_t a = 0; a < 2; ++a)
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t c = 0; c < 3; ++c) {
        if (flat == 0) expected.push_back(at(a, b, c) + 10 * at(a, b, c + 1) + 100 * at(a, b + 1, c));
        if (flat == 1) expected.push_back(at(a, b, c) + 10 * at(a, b, c + 1) + 100 * at(a + 1, b, c));
        if (flat == 2) expected.push_back(at(a, b, c) + 10 * at(a, b + 1, c) + 100 * at(a + 1, b, c));
        const std::size_t one = 1, none = 0;
        expected.back() +=
            1000 * at(a + (flat == 0 ? none : one), b + (flat == 1 ? none : one), c + (flat == 2 ? none : one)) + 0.5f;
      }
  check(outputs(model, pixels), expected);
  CHECK(test::trained_names(model.read().graph) == std::set<std::string>{"conv.weight", "conv.bias"});
}

TEST_CASE("Convolutions of volumes with windows in all dimensions are refused") {
  OnnxModel model({-1, 2, 2, 3});
  model.tensor<std::int64_t>("to", {5}, {-1, 1, 2, 2, 3}).node("Reshape", {"x", "to"}, {"volume"});
  model.parameter("conv.weight", {1, 1, 2, 2, 2}).node("Conv", {"volume", "conv.weight"}, {"y"});
  CHECK(model.problems() == test::Names{"node n_y (Conv): volumes are supported only if the windows have one element "
                                        "of a dimension"});
}

TEST_CASE("Large windows of max pools are pooled by rows and by columns") {
  const bool global = GENERATE(true, false);
  const std::int64_t size = global ? 300 : 20;
  OnnxModel model({-1, 1, size, size});
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size * size));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7919 % 199);
  pixels[pixels.size() - 2] = 255;
  pixels[3] = 240;
  if (global)
    model.node("GlobalMaxPool", {"x"}, {"a"});
  else
    model.node("MaxPool", {"x"}, {"a"},
               {{"kernel_shape", Wholes{17, 18}}, {"strides", Wholes{4, 4}}, {"pads", Wholes{1, 1, 0, 1}}});
  model.node("Flatten", {"a"}, {"y"});
  check(outputs(model, pixels), global ? Values{255} : Values{240, 240, 198, 255});
}

// oneDNN has the channels of these images last.
TEST_CASE("The mean of images of one pixel is the pixel") {
  const auto found = [](bool pool) {
    OnnxModel model({-1, 3, 4, 4});
    model.parameter("s.weight", {16, 3, 2, 2}).parameter("n.weight", {16}).parameter("c.weight", {16, 16, 2, 2});
    model.node("Conv", {"x", "s.weight"}, {"a"}, {{"strides", Wholes{2, 2}}});
    model.node("Transpose", {"a"}, {"t"}, {{"perm", Wholes{0, 2, 3, 1}}});
    model.node("LayerNormalization", {"t", "n.weight"}, {"l"});
    model.node("Transpose", {"l"}, {"u"}, {{"perm", Wholes{0, 3, 1, 2}}}).node("Conv", {"u", "c.weight"}, {"b"});
    if (pool) model.node("GlobalAveragePool", {"b"}, {"p"});
    std::vector<std::uint8_t> pixels(2 * 3 * 4 * 4);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7919 % 199);
    return test::outputs(model.node("Flatten", {pool ? "p" : "b"}, {"y"}).file(), pixels, 2);
  };
  check(found(true), found(false));
}

TEST_CASE("Lines are read as images of one row") {
  OnnxModel model({-1, 2, 1, 3});
  model.tensor<std::int64_t>("to", {3}, {0, 2, 3}).node("Reshape", {"x", "to"}, {"line"});
  const std::vector<std::uint8_t> pixels{1, 6, 2, 5, 3, 4};  // channels last: lines 1 2 3 and 6 5 4
  SECTION("convolution") {
    model.tensor<float>("conv.weight", {1, 2, 2}, {1, 10, 100, 1000}).tensor<float>("conv.bias", {1}, {0.5f});
    model.node("Conv", {"line", "conv.weight", "conv.bias"}, {"a"},
               {{"kernel_shape", Wholes{2}}, {"pads", Wholes{1, 0}}, {"strides", Wholes{2}}});
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels), {6010.5f, 4532.5f});
    const OnnxFile file = model.file();
    const ImportedNetwork network = read_network(file, exported_task(file));
    std::map<std::string, Shape> shapes;
    for (const Node& node : network.graph.nodes())
      for (const ParameterDeclaration& p : network.graph.parameters(node))
        shapes[parameter_name(node.name, p.name)] = p.shape;
    CHECK(shapes.at("conv.weight") == Shape{1, 2, 2});  // as PyTorch has it
  }
  SECTION("max pool") {
    model.node("MaxPool", {"line"}, {"a"}, {{"kernel_shape", Wholes{2}}}).node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels), {2, 3, 6, 5});
  }
  SECTION("average pool") {
    model.node("AveragePool", {"line"}, {"a"}, {{"kernel_shape", Wholes{2}}, {"strides", Wholes{1}}});
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels), {1.5f, 2.5f, 5.5f, 4.5f});
  }
  SECTION("global pools") {
    model.node("GlobalAveragePool", {"line"}, {"m"}).node("GlobalMaxPool", {"line"}, {"n"});
    model.node("Concat", {"m", "n"}, {"a"}, {{"axis", 2}}).node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels), {2, 3, 5, 6});
  }
  SECTION("with attributes of images") {
    model.node("MaxPool", {"line"}, {"a"}, {{"kernel_shape", Wholes{2, 2}}}).node("Flatten", {"a"}, {"y"});
    CHECK(model.problems() ==
          test::Names{"node n_a (MaxPool): its kernel_shape are for 2 dimensions, but its input has 1"});
  }
}

TEST_CASE("Cumulative sums of ONNX files") {
  SixPixels t;
  t.model.tensor<std::int64_t>("axis", {}, {3}).node("CumSum", {"x", "axis"}, {"up"});
  SECTION("of images") {
    t.model.node("CumSum", {"x", "axis"}, {"a"});
    t.expect({0, 30, 230, 10, 265, 355});
  }
  SECTION("from the end, without the element itself") {
    t.model.node("CumSum", {"x", "axis"}, {"a"}, {{"reverse", 1}, {"exclusive", 1}});
    t.expect({230, 200, 0, 345, 90, 0});
  }
  SECTION("of constants") {
    t.model.tensor<std::int64_t>("last", {}, {-1});
    t.model.tensor<float>("onnx::ones", {2, 3}, {1, 1, 1, 2, 2, 2}).node("CumSum", {"onnx::ones", "last"}, {"c"});
    t.model.node("Mul", {"x", "c"}, {"a"});
    t.expect({0, 60, 600, 20, 1020, 540});
  }
}

TEST_CASE("Triangles of computed matrices in ONNX files") {
  SixPixels t;
  SECTION("the upper one") {
    t.model.node("Trilu", {"x"}, {"a"});
    t.expect({0, 30, 200, 0, 255, 90});
  }
  SECTION("the lower one, from the diagonal on") {
    t.model.tensor<std::int64_t>("k", {}, {1}).node("Trilu", {"x", "k"}, {"a"}, {{"upper", 0}});
    t.expect({0, 30, 0, 10, 255, 90});
  }
  SECTION("without values that are not finite") {
    t.model.node("Log", {"x"}, {"log"}).tensor<std::int64_t>("k", {}, {1}).node("Trilu", {"log", "k"}, {"a"});
    t.expect({0, std::log(30.0f), std::log(200.0f), 0, 0, std::log(90.0f)});
  }
}

TEST_CASE("Triangles and places of constants in ONNX files") {
  SixPixels t;
  t.model.tensor<float>("onnx::m", {2, 3}, {1, 2, 3, 4, 5, 6});
  SECTION("the upper triangle") {
    t.model.node("Trilu", {"onnx::m"}, {"c"});
  }
  SECTION("the lower triangle") {
    t.model.node("Trilu", {"onnx::m"}, {"c"}, {{"upper", 0}});
  }
  SECTION("elements at places") {
    t.model.tensor<std::int64_t>("places", {2, 3}, {2, 1, 0, 0, 0, -1});
    t.model.node("GatherElements", {"onnx::m", "places"}, {"c"}, {{"axis", 1}});
  }
  SECTION("replaced elements") {
    t.model.tensor<std::int64_t>("places", {1, 2}, {1, 0}).tensor<float>("onnx::u", {1, 2}, {9, 8});
    t.model.node("ScatterElements", {"onnx::m", "places", "onnx::u"}, {"c"});
  }
  SECTION("the largest of columns") {
    t.model.node("ReduceMax", {"onnx::m"}, {"c"}, {{"axes", Wholes{0}}});
  }
  t.model.node("Mul", {"x", "c"}, {"a"});
  const std::string op = t.model.graph().node(0).op_type();
  const bool upper = t.model.graph().node(0).attribute_size() == 0;
  if (op == "Trilu") return t.expect(upper ? Values{0, 60, 600, 0, 1275, 540} : Values{0, 0, 0, 40, 1275, 0});
  if (op == "GatherElements") return t.expect({0, 60, 200, 40, 1020, 540});
  if (op == "ScatterElements") return t.expect({0, 240, 600, 90, 1275, 540});
  t.expect({0, 150, 1200, 40, 1275, 540});
}

TEST_CASE("Elements of images at places of several dimensions") {
  SixPixels t;
  t.model.tensor<std::int64_t>("places", {2, 2, 2}, {0, 1, 1, 2, 1, 1, 0, -1});
  t.model.node("Transpose", {"x"}, {"last"}, {{"perm", Wholes{2, 3, 0, 1}}});
  t.model.node("GatherND", {"last", "places"}, {"g"}).node("Transpose", {"g"}, {"a"}, {{"perm", Wholes{2, 3, 0, 1}}});
  t.expect({30, 90, 255, 200});
}

// Queries, keys and values of PyTorch's scaled_dot_product_attention.
TEST_CASE("Attention of ONNX files is PyTorch's") {
  OnnxModel model({-1, 1, 3, 2});
  const std::vector<std::uint8_t> pixels{0, 3, 2, 1, 1, 2};
  const auto expect = [&](const Values& expected) {
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels), expected);
  };
  SECTION("of all tokens") {
    model.node("Attention", {"x", "x", "x"}, {"a"});
    expect({0.131f, 2.869f, 1.4359f, 1.5641f, 0.5641f, 2.4359f});
  }
  SECTION("causal") {
    model.node("Attention", {"x", "x", "x"}, {"a"}, {{"is_causal", 1}});
    expect({0, 3, 1.6089f, 1.3911f, 0.5641f, 2.4359f});
  }
  SECTION("with a mask of truths, of which a row has none") {
    model.tensor<std::int64_t>("onnx::whole", {3, 3}, {0, 0, 0, 1, 1, 0, 0, 1, 1});
    model.node("Cast", {"onnx::whole"}, {"mask"}, {{"to", 9}});
    model.node("Attention", {"x", "x", "x", "mask"}, {"a"});
    expect({0, 0, 1.6089f, 1.3911f, 1.3302f, 1.6698f});
  }
  SECTION("with a mask of truths for every image") {
    model.tensor<std::int64_t>("onnx::whole", {1, 1, 3, 3}, {1, 0, 0, 1, 1, 0, 1, 1, 1});
    model.tensor<std::int64_t>("onnx::rest", {3}, {1, 3, 3}).node("Shape", {"x"}, {"count"}, {{"end", 1}});
    model.node("Concat", {"count", "onnx::rest"}, {"all"}, {{"axis", 0}}).node("Expand", {"onnx::whole", "all"}, {"e"});
    model.node("Cast", {"e"}, {"mask"}, {{"to", 9}}).node("Attention", {"x", "x", "x", "mask"}, {"a"});
    expect({0, 3, 1.6089f, 1.3911f, 0.5641f, 2.4359f});
  }
  SECTION("with a mask that keeps all") {
    model.tensor<std::int64_t>("onnx::whole", {3, 3}, Wholes(9, 1))
        .node("Cast", {"onnx::whole"}, {"mask"}, {{"to", 9}});
    model.node("Attention", {"x", "x", "x", "mask"}, {"a"});
    expect({0.131f, 2.869f, 1.4359f, 1.5641f, 0.5641f, 2.4359f});
  }
  SECTION("with bounded scores") {
    model.node("Attention", {"x", "x", "x"}, {"a"}, {{"softcap", 2.0f}});
    expect({0.8682f, 2.1318f, 1.1029f, 1.8971f, 0.945f, 2.055f});
  }
}

TEST_CASE("Attention of ONNX files with the heads in the last dimension") {
  OnnxModel model({-1, 1, 3, 4});
  model.tensor<std::int64_t>("to", {3}, {0, 3, 4}).node("Reshape", {"x", "to"}, {"t"});
  const std::vector<std::uint8_t> pixels{0, 3, 2, 1, 1, 2, 2, 0, 1, 1, 0, 1};
  SECTION("each with keys of its own") {
    model.node("Attention", {"t", "t", "t"}, {"a"}, {{"q_num_heads", 2}, {"kv_num_heads", 2}});
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels),
          {0.1184f, 2.869f, 1.9238f, 0.6823f, 0.38f, 2.5457f, 1.9426f, 0.5144f, 0.5989f, 2.2033f, 1.1978f, 0.8022f});
  }
  SECTION("groups of heads with the same keys") {
    model.tensor<std::int64_t>("begin", {1}, {0}).tensor<std::int64_t>("end", {1}, {2});
    model.tensor<std::int64_t>("axis", {1}, {2}).node("Slice", {"t", "begin", "end", "axis"}, {"k"});
    model.node("Attention", {"t", "k", "k"}, {"a"}, {{"q_num_heads", 2}, {"kv_num_heads", 1}});
    model.node("Flatten", {"a"}, {"y"});
    check(outputs(model, pixels),
          {0.1184f, 2.869f, 0.7517f, 2, 0.38f, 2.5457f, 0.8916f, 1.6626f, 0.5989f, 2.2033f, 0.424f, 2.4359f});
  }
}

// Expected values are those of ONNX's reference implementation.
TEST_CASE("Rotary positions of ONNX files as single nodes") {
  const bool flat = GENERATE(false, true);
  OnnxModel model(flat ? Wholes{-1, 1, 3, 8} : Wholes{-1, 2, 3, 4});
  // Places of {heads, positions, features} in {positions, heads, features}, and in {positions, features, heads}.
  const auto token_first = [](std::size_t i) { return i / 4 % 2 * 12 + i / 8 * 4 + i % 4; };
  const auto heads_last = [](std::size_t i) { return i % 2 * 12 + i / 8 * 4 + i / 2 % 4; };
  std::vector<std::uint8_t> pixels(24);
  for (std::size_t i = 0; i < 24; ++i)
    pixels[i] = static_cast<std::uint8_t>((flat ? token_first(i) : heads_last(i)) * 3 % 17);
  if (flat) model.tensor<std::int64_t>("flat", {3}, {0, 3, 8}).node("Reshape", {"x", "flat"}, {"q"});
  const auto expect = [&](std::int64_t half, const Wholes& positions, test::AttributeValues attributes,
                          const Values& expected) {
    Values cosines, sines;
    for (std::int64_t position = 0; position < 5; ++position)
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * (i == 0 ? 1 : 0.25);
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    test::Names inputs{flat ? "q" : "x", "cos", "sin"};
    const Wholes shape{5, half}, whole{1, 3, half};
    if (positions.empty()) {
      for (Values* table : {&cosines, &sines}) table->resize(static_cast<std::size_t>(3 * half));
    } else {
      model.tensor<std::int64_t>("positions", {1, 3}, positions);
      inputs.emplace_back("positions");
    }
    model.tensor<float>("cos", positions.empty() ? whole : shape, cosines);
    model.tensor<float>("sin", positions.empty() ? whole : shape, sines);
    if (flat) attributes.emplace_back("num_heads", std::int64_t{2});
    model.node("RotaryEmbedding", inputs, {"a"}, attributes).node("Flatten", {"a"}, {"y"});
    Values ordered = expected;
    for (std::size_t i = 0; flat && i < 24; ++i) ordered[i] = expected[token_first(i)];
    check(outputs(model, pixels), ordered);
  };
  SECTION("in halves") {
    expect(2, {}, {}, {0, 3, 6, 9,  5.6422f, 13.5441f, 10.638f,  7.5867f, -14.7339f, 1.105f,   0.9552f, 18.8356f,
                       2, 5, 8, 11, 5.0398f, -1.4844f, 13.4015f, 5.8135f, -17.3848f, 10.0516f, 1.9415f, 6.6307f});
  }
  SECTION("side by side, at given positions") {
    expect(2, {2, 0, 4}, {{"interleaved", std::int64_t{1}}},
           {-2.7279f, -1.2484f, 0.9507f, 10.7748f, 12, 15, 1, 4, 2.9925f, -11.8341f, -6.4396f, 19.584f,
            -5.3788f, -0.2621f, 1.747f,  13.4888f, 14, 0,  3, 6, 3.1988f, -14.6549f, 7.2631f,  13.1624f});
  }
  SECTION("of the first features only") {
    expect(1, {2, 0, 4}, {{"rotary_embedding_dim", std::int64_t{2}}},
           {-2.7279f, -1.2484f, 6, 9,  12, 15, 1, 4, 2.9925f, -11.8341f, 13, 16,
            -5.3788f, -0.2621f, 8, 11, 14, 0,  3, 6, 3.1988f, -14.6549f, 15, 1});
  }
}

TEST_CASE("Root mean square normalization of ONNX files") {
  SixPixels t;
  t.model.tensor<float>("scale", {3}, {1, 2, 3});
  const char* op = GENERATE("RMSNormalization", "SimplifiedLayerNormalization");
  t.model.node(op, {"x", "scale"}, {"a"}, {{"epsilon", 0.5f}});
  Values expected{0, 30, 200, 10, 255, 90};
  for (std::size_t i = 0; i < 6; ++i) {
    const double squares = i < 3 ? 900 + 40000 : 100 + 65025 + 8100;
    expected[i] *= static_cast<float>(static_cast<double>(i % 3 + 1) / std::sqrt(squares / 3 + 0.5));
  }
  t.expect(expected);
}

TEST_CASE("Images of ONNX files are resized by cubics, or with antialias, as PyTorch does") {
  SixPixels t;
  const auto resize = [&](const Wholes& size, test::AttributeValues attributes) {
    t.model.tensor<std::int64_t>("s", {2}, size);
    attributes.push_back({"axes", Wholes{2, 3}});
    t.model.node("Resize", {"x", "", "", "s"}, {"a"}, attributes);
  };
  SECTION("cubic") {
    resize({3, 5}, {{"mode", "cubic"}});
    t.expect({-1.9564f, -10.8031f, 10.4687f, 133.1219f, 228.6603f, -8.2f, 58.17f, 142.5f, 153.93f, 145.24f, -14.4436f,
              127.1431f, 274.5312f, 174.7381f, 61.8198f});
  }
  SECTION("cubic with aligned corners") {
    resize({2, 2}, {{"mode", "cubic"}, {"coordinate_transformation_mode", "align_corners"}});
    t.expect({0, 200, 10, 90});
  }
  SECTION("linear with antialias") {
    resize({1, 2}, {{"mode", "linear"}, {"antialias", 1}});
    t.expect({56.5625f, 144.0625f});
  }
  SECTION("cubic with antialias") {
    resize({1, 2}, {{"mode", "cubic"}, {"antialias", 1}, {"cubic_coeff_a", -0.5f}});
    t.expect({53.0136f, 149.6429f});
  }
  SECTION("lines") {
    t.model.tensor<std::int64_t>("to", {3}, {0, 2, 3}).tensor<std::int64_t>("s", {1}, {5});
    t.model.node("Reshape", {"x", "to"}, {"line"});
    t.model.node("Resize", {"line", "", "", "s"}, {"a"}, {{"mode", "linear"}, {"axes", Wholes{2}}});
    t.expect({0, 12, 30, 132, 200, 10, 108, 255, 156, 90});
  }
}

TEST_CASE("Overlapping patches of ONNX files are added up") {
  SixPixels t;
  t.model.tensor<std::int64_t>("size", {2}, {2, 2}).tensor<std::int64_t>("block", {2}, {1, 2});
  t.model.tensor<std::int64_t>("to", {3}, {0, 2, 3}).node("Reshape", {"x", "to"}, {"p"});
  // Windows of 1x2 pixels in three columns: of one row of four pixels, the outer ones of which are padding.
  t.model.tensor<std::int64_t>("line", {2}, {1, 2});
  t.model.node("Col2Im", {"p", "line", "block"}, {"a"}, {{"pads", Wholes{0, 1, 0, 1}}});
  t.expect({30 + 10, 200 + 255});
}

TEST_CASE("Quantized weights of ONNX files are numbers, which are trained") {
  OnnxModel model({-1, 1, 1, 3});
  model.tensor<std::int64_t>("q", {2, 3}, {1, 2, 3, 4, 5, 6}).tensor<float>("s", {2}, {2, 10});
  model.tensor<std::int64_t>("z", {2}, {1, 0}).node("DequantizeLinear", {"q", "s", "z"}, {"w"}, {{"axis", 0}});
  model.node("Flatten", {"x"}, {"f"}).node("Gemm", {"f", "w"}, {"y"}, {{"transB", 1}});
  check(outputs(model, {3, 5, 7}), {2 * (5 + 14), 10 * (12 + 25 + 42)});
}

TEST_CASE("Products of ONNX files in Einstein's notation join dimensions") {
  OnnxModel model({-1, 2, 2, 1});
  model.tensor<float>("onnx::w", {2, 3}, {1, 2, 3, 10, 20, 30});
  model.node("Einsum", {"x", "onnx::w"}, {"a"}, {{"equation", "bchw,ck->bhwk"}}).node("Flatten", {"a"}, {"y"});
  check(outputs(model, {1, 2, 3, 4}), {21, 42, 63, 43, 86, 129});  // pixels have channels last
}

}  // namespace
}  // namespace annulus
