#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/onnx_outputs.h"

// What the networks of ONNX files compute, beside the definitions of the operators.
namespace annulus {
namespace {

using test::OnnxModel;
using test::Wholes;
using Values = std::vector<float>;

void check_close(const Values& found, const Values& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-4));
  }
}

// The pixels 0 30 200 / 10 255 90, on which a node computes a.
struct NodeOnPixels {
  OnnxModel model{{-1, 1, 2, 3}};

  void expect(const Values& expected) {
    model.node("Flatten", {"a"}, {"y"});
    check_close(test::outputs(model.file(), {0, 30, 200, 10, 255, 90}), expected);
  }
};

// Expected values are those of PyTorch's interpolate().
TEST_CASE("Resized images of ONNX files are PyTorch's") {
  NodeOnPixels t;
  SECTION("bilinear, by a scale that does not divide") {
    t.model.tensor<float>("s", {4}, {1, 1, 1.7f, 1.7f});
    t.model.node("Resize", {"x", "", "s"}, {"a"}, {{"mode", "linear"}});
    t.expect({0, 11.4706f, 29.1176f, 125, 200, 3.8235f, 46.7258f, 112.7293f, 139.4507f, 157.9412f, 9.7059f, 100.9646f,
              241.3625f, 161.6825f, 93.2353f});
  }
  SECTION("nearest, by a scale that does not divide") {
    t.model.tensor<float>("s", {2}, {1.7f, 1.7f});
    t.model.node("Resize", {"x", "", "s"}, {"a"},
                 {{"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}, {"axes", Wholes{2, 3}}});
    t.expect({0, 0, 30, 30, 200, 0, 0, 30, 30, 200, 10, 10, 255, 255, 90});
  }
  SECTION("nearest-exact, by a scale that does not divide") {
    t.model.tensor<float>("s", {4}, {1, 1, 1.7f, 1.7f});
    t.model.node("Resize", {"x", "", "s"}, {"a"}, {{"nearest_mode", "round_prefer_ceil"}});
    t.expect({0, 0, 30, 200, 200, 0, 0, 30, 200, 200, 10, 10, 255, 90, 90});
  }
  SECTION("bilinear, with aligned corners, to a size") {
    t.model.tensor<std::int64_t>("s", {4}, {1, 1, 3, 5}).node("Shape", {"x"}, {"batch"}, {{"end", 1}});
    t.model.tensor<std::int64_t>("rest", {3}, {1, 3, 5}).node("Concat", {"batch", "rest"}, {"to"}, {{"axis", 0}});
    t.model.node("Resize", {"x", "", "", "to"}, {"a"},
                 {{"mode", "linear"}, {"coordinate_transformation_mode", "align_corners"}});
    t.expect({0, 15, 30, 115, 200, 5, 73.75f, 142.5f, 143.75f, 145, 10, 132.5f, 255, 172.5f, 90});
  }
  SECTION("bilinear, to fewer pixels") {
    t.model.tensor<std::int64_t>("s", {2}, {1, 2});
    t.model.node("Resize", {"x", "", "", "s"}, {"a"}, {{"mode", "linear"}, {"axes", Wholes{-2, -1}}});
    t.expect({39.375f, 144.375f});
  }
  SECTION("to one row, which is the first") {
    t.model.tensor<std::int64_t>("s", {2}, {1, 3});
    t.model.node(
        "Resize", {"x", "", "", "s"}, {"a"},
        {{"mode", "linear"}, {"coordinate_transformation_mode", "pytorch_half_pixel"}, {"axes", Wholes{2, 3}}});
    t.expect({0, 30, 200});
  }
}

TEST_CASE("Resized images of ONNX files begin a pixel where PyTorch's do") {
  OnnxModel model({-1, 1, 1, 20});
  model.tensor<float>("s", {4}, {1, 1, 1, 1.7f});  // 17 / 1.7 is 10, but 1.7 is stored as a larger number
  model.node("Resize", {"x", "", "s"}, {"a"},
             {{"coordinate_transformation_mode", "asymmetric"}, {"nearest_mode", "floor"}});
  model.node("Flatten", {"a"}, {"y"});
  std::vector<std::uint8_t> pixels(20);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i);
  const Values found = test::outputs(model.file(), pixels);
  REQUIRE(found.size() == 34);
  CHECK(found[16] == Approx(9));
  CHECK(found[17] == Approx(10));
}

TEST_CASE("Padded images of ONNX files have the values of their definition") {
  NodeOnPixels t;
  const auto pad = [&](const std::string& mode, const Wholes& sides) {
    t.model.tensor<std::int64_t>("sides", {8}, sides).tensor<float>("border", {1}, {7});
    t.model.node("Pad", {"x", "sides", "border"}, {"a"}, {{"mode", mode}});
  };
  SECTION("with a number, and removed on the other side") {
    pad("constant", {0, 0, 1, -1, 0, 0, -1, 2});
    t.expect({7, 7, 7, 7, 30, 200, 7, 7});
  }
  SECTION("by reflection") {
    pad("reflect", {0, 0, 0, 1, 0, 0, 0, -1});
    t.expect({30, 0, 30, 255, 10, 255});
  }
  SECTION("by their edge") {
    pad("edge", {0, 0, 1, 0, 0, 0, 0, 1});
    t.expect({0, 30, 200, 200, 0, 30, 200, 200, 10, 255, 90, 90});
  }
  SECTION("by repetition") {
    pad("wrap", {0, 0, 0, 1, 0, 0, 0, 0});
    t.expect({200, 0, 30, 200, 90, 10, 255, 90});
  }
}

TEST_CASE("Gemm of ONNX files scales and transposes its operands") {
  const bool rows = GENERATE(true, false);
  const float alpha = GENERATE(1.0f, 0.5f), beta = GENERATE(1.0f, -2.0f, 0.0f);
  const bool each = GENERATE(true, false);  // a bias for each unit, or one for all
  OnnxModel model({-1, 1, 1, 3});
  model.tensor<float>("weight", rows ? Wholes{2, 3} : Wholes{3, 2},
                      rows ? Values{1, 2, 3, 4, 5, 6} : Values{1, 4, 2, 5, 3, 6});
  model.tensor<float>("bias", {each ? 2 : 1}, each ? Values{10, 20} : Values{10});
  model.node("Flatten", {"x"}, {"f"});
  model.node("Gemm", {"f", "weight", "bias"}, {"y"}, {{"transB", rows ? 1 : 0}, {"alpha", alpha}, {"beta", beta}});
  CAPTURE(rows, alpha, beta, each);
  check_close(test::outputs(model.file(), {3, 5, 7}), {alpha * 34 + beta * 10, alpha * 79 + beta * (each ? 20 : 10)});
}

TEST_CASE("Learned numbers of ONNX files are values of their own") {
  NodeOnPixels trial;
  trial.model.proto.set_producer_name("pytorch");
  trial.model.number("t", 0.5f).number("s", 3).tensor<std::int64_t>("to", {4}, {1, 1, 1, 1});
  trial.model.node("Exp", {"t"}, {"e"}).node("Mul", {"e", "s"}, {"product"}).node("Reshape", {"product", "to"}, {"r"});
  trial.model.node("Abs", {"x"}, {"i"}).node("Mul", {"i", "r"}, {"m"}).node("Sub", {"m", "t"}, {"a"});
  const float scale = 3 * std::exp(0.5f);
  trial.expect(
      {-0.5f, 30 * scale - 0.5f, 200 * scale - 0.5f, 10 * scale - 0.5f, 255 * scale - 0.5f, 90 * scale - 0.5f});
}

TEST_CASE("Gemm of ONNX files with a transposed first operand") {
  OnnxModel model({-1, 1, 1, 3});
  model.tensor<float>("weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  model.node("Flatten", {"x"}, {"f"}).node("Transpose", {"f"}, {"t"}, {{"perm", Wholes{1, 0}}});
  model.node("Gemm", {"t", "weight"}, {"y"}, {{"transA", 1}, {"transB", 1}});
  check_close(test::outputs(model.file(), {3, 5, 7}), {34, 79});
}

TEST_CASE("Gemm of ONNX files needs matrices") {
  OnnxModel model({-1, 3, 1, 1});
  model.parameter("weight", {2, 1}).node("Gemm", {"x", "weight"}, {"y"}, {{"transB", 1}});
  CHECK(model.problems() == test::Names{"node n_y (Gemm): its input of 1x3x1x1 is not a matrix: use MatMul"});
}

TEST_CASE("Choices of ONNX files keep the values of their condition") {
  NodeOnPixels t;
  t.model.tensor<std::int64_t>("mask", {2, 1}, {1, 0}).tensor<float>("fill", {1}, {7});
  SECTION("where it is true") {
    t.model.node("Where", {"mask", "x", "fill"}, {"a"});
    t.expect({0, 30, 200, 7, 7, 7});
  }
  SECTION("where it is false") {
    t.model.node("Where", {"mask", "fill", "x"}, {"a"});
    t.expect({7, 7, 7, 10, 255, 90});
  }
  SECTION("of another shape") {
    t.model.tensor<std::int64_t>("column", {3}, {0, 1, 1}).node("Where", {"column", "x", "fill"}, {"a"});
    t.expect({7, 30, 200, 7, 255, 90});
  }
}

TEST_CASE("Groups of ONNX files are normalized without a scale and a shift") {
  const bool scaled = GENERATE(false, true);  // along the rows, so that it is not a group norm's
  OnnxModel model({-1, 1, 2, 3});
  model.tensor<float>("onnx::one", {1}, {1}).tensor<float>("onnx::zero", {1}, {0});
  model.tensor<std::int64_t>("to", {3}, {0, 1, -1}).tensor<std::int64_t>("back", {4}, {-1, 1, 2, 3});
  model.parameter("scale", {3}).parameter("shift", {3}).node("Reshape", {"x", "to"}, {"groups"});
  model.node("InstanceNormalization", {"groups", "onnx::one", "onnx::zero"}, {"norm"}, {{"epsilon", 0.25f}});
  model.node("Reshape", {"norm", "back"}, {"images"});
  if (scaled) model.node("Mul", {"images", "scale"}, {"product"}).node("Add", {"product", "shift"}, {"sum"});
  model.node("Flatten", {scaled ? "sum" : "images"}, {"y"});
  Values expected{-2, -1, 0, 3, -1, 1};
  for (std::size_t i = 0; i < 6; ++i) {
    const auto column = static_cast<float>(i % 3);  // its scale and shift
    expected[i] /= std::sqrt(16.0f / 6 + 0.25f);
    if (scaled) expected[i] = expected[i] * column + column;
  }
  check_close(test::outputs(model.file(), {1, 2, 3, 6, 2, 4}), expected);
}

TEST_CASE("Layer normalization by its parts and GELU by tanh compute what their parts do") {
  OnnxModel model({-1, 1, 1, 4});
  model.tensor<float>("w", {4}, {1, 2, 3, 4}).tensor<float>("b", {4}, {0.5f, 0, 0, -1}).number("two", 2);
  model.number("epsilon", 0.25f).node("Flatten", {"x"}, {"f"});
  model.node("ReduceMean", {"f"}, {"mean"}, {{"axes", Wholes{-1}}}).node("Sub", {"f", "mean"}, {"d"});
  model.node("Pow", {"d", "two"}, {"square"}).node("ReduceMean", {"square"}, {"var"}, {{"axes", Wholes{-1}}});
  model.node("Add", {"var", "epsilon"}, {"plus"}).node("Sqrt", {"plus"}, {"root"}).node("Div", {"d", "root"}, {"q"});
  model.node("Mul", {"q", "w"}, {"m"}).node("Add", {"m", "b"}, {"g"});
  model.number("three", 3).number("c3", 0.044715f).number("slope", 0.79788456f).number("one", 1).number("half", 0.5f);
  model.node("Pow", {"g", "three"}, {"cube"}).node("Mul", {"cube", "c3"}, {"scaled"});
  model.node("Add", {"g", "scaled"}, {"s"}).node("Mul", {"s", "slope"}, {"t"}).node("Tanh", {"t"}, {"tanh"});
  model.node("Add", {"tanh", "one"}, {"gate"}).node("Mul", {"g", "gate"}, {"z"}).node("Mul", {"z", "half"}, {"y"});
  Values expected;
  const Values x{1, 2, 3, 6}, w{1, 2, 3, 4}, b{0.5f, 0, 0, -1};
  for (std::size_t i = 0; i < 4; ++i) {
    const double g = (x[i] - 3) / std::sqrt(3.5 + 0.25) * w[i] + b[i];
    expected.push_back(static_cast<float>(0.5 * g * (1 + std::tanh(0.79788456 * (g + 0.044715 * g * g * g)))));
  }
  check_close(test::outputs(model.file(), {1, 2, 3, 6}), expected);
}

}  // namespace
}  // namespace annulus
