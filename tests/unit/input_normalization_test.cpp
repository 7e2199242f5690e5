#include "src/onnx/input_normalization.h"

#include <catch2/catch.hpp>
#include <functional>

#include "tests/unit/onnx_model.h"

// Networks that normalize images themselves: which pixels they are given.
namespace annulus {
namespace {

using test::Names;
using test::OnnxModel;
using test::Wholes;
using Values = std::vector<float>;

// A network of images x {batch, 3, 8, 8}.
OnnxModel images(std::int64_t batch = -1) {
  OnnxModel model({batch, 3, 8, 8});
  model.tensor<float>("onnx::mean", {1, 3, 1, 1}, {0.485f, 0.456f, 0.406f});
  model.tensor<float>("onnx::std", {1, 3, 1, 1}, {0.229f, 0.224f, 0.225f});
  model.tensor<float>("onnx::mean255", {1, 3, 1, 1}, {123.675f, 116.28f, 103.53f});
  model.tensor<float>("onnx::std255", {1, 3, 1, 1}, {58.395f, 57.12f, 57.375f});
  model.number("onnx::0", 0).number("onnx::1", 1).number("onnx::2", 2).number("onnx::255", 255);
  model.number("onnx::127.5", 127.5f).number("onnx::half", 0.5f);
  model.tensor<std::int64_t>("bgr", {3}, {2, 1, 0});
  return model;
}

ImportedNetwork read(OnnxModel& model, const std::string& last) {
  return model.node("Sigmoid", {last}, {"first_layer"}).classify("first_layer", 3).read();
}

using Build = std::function<std::string(OnnxModel& model)>;

// x - mean over std, of `x`.
OnnxModel& normalize(OnnxModel& model, const std::string& x, const std::string& kind = "") {
  return model.node("Sub", {x, "onnx::mean" + kind}, {"centred"}).node("Div", {"centred", "onnx::std" + kind}, {"n"});
}

struct Case {
  const char* name;
  Pixels expected;
  Build build;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"nothing", Pixels::normalized, [](OnnxModel&) { return "x"; }},
      {"mean and std", Pixels::to_one, [](OnnxModel& m) { return normalize(m, "x"), "n"; }},
      {"mean and std of bytes", Pixels::to_255, [](OnnxModel& m) { return normalize(m, "x", "255"), "n"; }},
      {"a cast first", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Cast", {"x"}, {"c"}, {{"to", 1}}), normalize(m, "c"), "n";
       }},
      {"BGR first", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Gather", {"x", "bgr"}, {"c"}, {{"axis", 1}}), normalize(m, "c"), "n";
       }},
      {"limits first", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Clip", {"x", "onnx::0", "onnx::1"}, {"c"}), normalize(m, "c"), "n";
       }},
      {"limits alone", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Clip", {"x", "onnx::0", "onnx::255"}, {"c"}), "c";
       }},
      {"limits of bytes after a division", Pixels::to_255,
       [](OnnxModel& m) {
         m.node("Div", {"x", "onnx::255"}, {"d"}).node("Clip", {"d", "onnx::0", "onnx::1"}, {"c"});
         return normalize(m, "c"), "n";
       }},
      {"limits of -1 and 1", Pixels::normalized,
       [](OnnxModel& m) {
         return m.number("onnx::-1", -1).node("Clip", {"x", "onnx::-1", "onnx::1"}, {"c"}), "c";
       }},
      {"a division by 255", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Div", {"x", "onnx::255"}, {"c"}), "c";
       }},
      {"a division by 255, mean and std", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Div", {"x", "onnx::255"}, {"c"}), normalize(m, "c"), "n";
       }},
      {"a product with 255, mean and std of bytes", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Mul", {"x", "onnx::255"}, {"c"}), normalize(m, "c", "255"), "n";
       }},
      {"2 x - 1", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Mul", {"x", "onnx::2"}, {"d"}).node("Sub", {"d", "onnx::1"}, {"c"}), "c";
       }},
      {"(x - 0.5) / 0.5", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Sub", {"x", "onnx::half"}, {"d"}).node("Div", {"d", "onnx::half"}, {"c"}), "c";
       }},
      {"x / 127.5 - 1", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Div", {"x", "onnx::127.5"}, {"d"}).node("Sub", {"d", "onnx::1"}, {"c"}), "c";
       }},
      {"(x - 127.5) / 127.5", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Sub", {"x", "onnx::127.5"}, {"d"}).node("Div", {"d", "onnx::127.5"}, {"c"}), "c";
       }},
      {"the mean of bytes alone", Pixels::to_255,
       [](OnnxModel& m) {
         return m.node("Sub", {"x", "onnx::mean255"}, {"c"}), "c";
       }},
      {"the mean alone", Pixels::to_one,
       [](OnnxModel& m) {
         return m.node("Sub", {"x", "onnx::mean"}, {"c"}), "c";
       }},
      {"a mean image of bytes", Pixels::to_255,
       [](OnnxModel& m) {
         m.tensor<float>("onnx::image", {3, 8, 8}, Values(192, 120));
         return m.node("Sub", {"x", "onnx::image"}, {"c"}), "c";
       }},
      {"channels apart", Pixels::to_255,
       [](OnnxModel& m) {
         Names parts;
         const Values mean{123.675f, 116.28f, 103.53f};
         for (const std::size_t i : {0, 1, 2}) {
           const std::string s = std::to_string(i);
           m.tensor<std::int64_t>("b" + s, {1}, {static_cast<std::int64_t>(i)});
           m.tensor<std::int64_t>("e" + s, {1}, {static_cast<std::int64_t>(i) + 1});
           m.number("onnx::m" + s, mean[i]);
           m.node("Slice", {"x", "b" + s, "e" + s, "b1"}, {"p" + s}).node("Sub", {"p" + s, "onnx::m" + s}, {"s" + s});
           parts.push_back("s" + s);
         }
         return m.node("Concat", parts, {"c"}, {{"axis", 1}}), "c";
       }},
      {"torchvision's transform of normalized images", Pixels::normalized,
       [](OnnxModel& m) {
         m.tensor<float>("onnx::f", {1, 3, 1, 1}, {0.458f, 0.448f, 0.45f});
         m.tensor<float>("onnx::o", {1, 3, 1, 1}, {-0.03f, -0.088f, -0.188f});
         return m.node("Mul", {"x", "onnx::f"}, {"d"}).node("Add", {"d", "onnx::o"}, {"c"}), "c";
       }},
      {"(x + 1) / 2 of images of -1 to 1, mean and std", Pixels::normalized,
       [](OnnxModel& m) {
         m.node("Add", {"x", "onnx::1"}, {"d"}).node("Div", {"d", "onnx::2"}, {"c"});
         return normalize(m, "c"), "n";
       }},
      {"channels last, behind borders", Pixels::to_one,
       [](OnnxModel& m) {
         m.tensor<std::int64_t>("pads", {8}, {0, 0, 1, 1, 0, 0, 1, 1})
             .tensor<float>("onnx::m", {3}, {0.4f, 0.5f, 0.6f});
         m.node("Pad", {"x", "pads"}, {"p"}).node("Transpose", {"p"}, {"t"}, {{"perm", Wholes{0, 2, 3, 1}}});
         m.node("Sub", {"t", "onnx::m"}, {"s"}).node("Transpose", {"s"}, {"c"}, {{"perm", Wholes{0, 3, 1, 2}}});
         return "c";
       }},
      {"a smaller image, divided by 255", Pixels::to_255,
       [](OnnxModel& m) {
         m.node("AveragePool", {"x"}, {"p"}, {{"kernel_shape", Wholes{2, 2}}, {"strides", Wholes{2, 2}}});
         return m.node("Div", {"p", "onnx::255"}, {"c"}), "c";
       }},
      {"a gray image", Pixels::to_one,
       [](OnnxModel& m) {
         m.node("ReduceMean", {"x"}, {"g"}, {{"axes", Wholes{1}}}).node("Sub", {"g", "onnx::half"}, {"s"});
         return m.node("Concat", {"s", "s", "s"}, {"c"}, {{"axis", 1}}), "c";
       }},
      {"weighted channels", Pixels::normalized,
       [](OnnxModel& m) {
         m.number("onnx::r", 0.2989f).number("onnx::g", 0.587f).number("onnx::b", 0.114f);
         m.node("Split", {"x"}, {"r", "g", "b"}, {{"axis", 1}}).node("Mul", {"r", "onnx::r"}, {"wr"});
         m.node("Mul", {"g", "onnx::g"}, {"wg"}).node("Mul", {"b", "onnx::b"}, {"wb"});
         m.node("Add", {"wr", "wg"}, {"rg"}).node("Add", {"rg", "wb"}, {"gray"});
         return m.node("Concat", {"gray", "gray", "gray"}, {"c"}, {{"axis", 1}}), "c";
       }},
      {"flat images", Pixels::to_one,
       [](OnnxModel& m) {
         m.tensor<std::int64_t>("rows", {2}, {0, -1}).tensor<std::int64_t>("back", {4}, {0, 3, 8, 8});
         m.node("Reshape", {"x", "rows"}, {"f"}).node("Sub", {"f", "onnx::half"}, {"s"});
         return m.node("Reshape", {"s", "back"}, {"c"}), "c";
       }},
  };
  return all;
}

TEST_CASE("Networks that normalize images themselves are given the pixels that they expect") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    OnnxModel model = images();
    const ImportedNetwork network = read(model, c.build(model));
    CHECK(name(network.pixels) == std::string(name(c.expected)));
    const bool reported = !network.notes.empty() && network.notes[0].find("--pixels") != std::string::npos;
    CHECK((reported || c.expected == Pixels::normalized));
  }
}

TEST_CASE("The image input undoes neither more nor less than the pixels' scale") {
  OnnxModel model = images();
  const bool bytes = GENERATE(true, false);
  normalize(model, "x", bytes ? "255" : "");
  const ImportedNetwork network = read(model, "n");
  const auto& input = std::get<ImageInput>(network.graph.nodes()[0].operation);
  const Values mean = bytes ? Values{123.675f / 255, 116.28f / 255, 103.53f / 255} : Values{0.485f, 0.456f, 0.406f};
  const Values stddev = bytes ? Values{58.395f / 255, 57.12f / 255, 57.375f / 255} : Values{0.229f, 0.224f, 0.225f};
  for (std::size_t c = 0; c < 3; ++c) {
    CHECK(input.mean[c] == Approx(mean[c]).epsilon(1e-6));
    CHECK(input.stddev[c] == Approx(stddev[c]).epsilon(1e-6));
  }
}

TEST_CASE("The statistics of a first batch normalization decide the pixels") {
  const auto [mean, variance, expected] = GENERATE(table<float, float, Pixels>({{0.0f, 1.0f, Pixels::normalized},
                                                                                {0.1f, 0.8f, Pixels::normalized},
                                                                                {0.45f, 0.06f, Pixels::to_one},
                                                                                {115.0f, 3600.0f, Pixels::to_255}}));
  OnnxModel model = images();
  model.parameter("bn.weight", {3}).parameter("bn.bias", {3});
  model.tensor<float>("bn.running_mean", {3}, Values(3, mean));
  model.tensor<float>("bn.running_var", {3}, Values(3, variance));
  model.node("BatchNormalization", {"x", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}, {"c"});
  CHECK(name(read(model, "c").pixels) == std::string(name(expected)));
}

TEST_CASE("The pixels that the user names count, and are kept in the file without values") {
  OnnxModel model = images();
  normalize(model, "x").node("Sigmoid", {"n"}, {"first_layer"}).classify("first_layer", 3);
  OnnxFile file = model.file();
  const Task task = exported_task(file);
  const auto input = [&](const OnnxFile& from) {
    return std::get<ImageInput>(read_network(from, task).graph.nodes()[0].operation);
  };
  const OnnxFile kept = OnnxFile::parse(without_parameters(file, read_network(file, task)), "kept");
  CHECK(name(kept.pixels()) == std::string("0..1"));
  CHECK(input(kept).stddev == input(file).stddev);
  file.set_pixels(Pixels::to_255);
  CHECK(input(file).stddev[0] == Approx(0.229f / 255));
  const OnnxFile again = OnnxFile::parse(without_parameters(file, read_network(file, task)), "again");
  CHECK(input(again).stddev == input(file).stddev);
  file.set_pixels(Pixels::normalized);  // with mean 0.5 and std 0.25: see neutral_task()
  CHECK(input(file).mean[0] == Approx(0.5f + 0.485f * 0.25f));
  CHECK(input(file).stddev[0] == Approx(0.229f * 0.25f));
}

}  // namespace
}  // namespace annulus
