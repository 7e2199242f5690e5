#include <catch2/catch.hpp>
#include <filesystem>
#include <limits>

#include "tests/unit/onnx_outputs.h"
#include "tests/unit/temporary_folder.h"

// Forms of ONNX files beside those of PyTorch's defaults, by what their networks compute.
namespace annulus {
namespace {

using test::error_of;
using test::Names;
using test::OnnxModel;
using test::outputs;
using test::Wholes;
using Values = std::vector<float>;
using Pixels8 = std::vector<std::uint8_t>;

TEST_CASE("Images of ONNX files may have their channels last") {
  OnnxModel model({-1, 1, 2, 3});
  model.tensor<float>("onnx::shift", {3}, {1, 2, 3});
  SECTION("if the first operation moves them") {
    model.node("Transpose", {"x"}, {"t"}, {{"perm", Wholes{0, 3, 1, 2}}}).node("Flatten", {"t"}, {"y"});
    CHECK(outputs(model.file(), {1, 2, 3, 4, 5, 6}) == Values{1, 4, 2, 5, 3, 6});
  }
  SECTION("behind arithmetic") {
    model.node("Add", {"x", "onnx::shift"}, {"s"}).node("Transpose", {"s"}, {"t"}, {{"perm", Wholes{0, 3, 1, 2}}});
    CHECK(outputs(model.node("Flatten", {"t"}, {"y"}).file(), {1, 2, 3, 4, 5, 6}) == Values{2, 5, 4, 7, 6, 9});
  }
  const auto shape = model.file().input_shape();
  CHECK(shape == std::array<std::size_t, 4>{0, 3, 1, 2});
}

TEST_CASE("Images of bytes are 0 to 255, whatever the order of their dimensions") {
  const bool last = GENERATE(true, false);
  OnnxModel model(last ? Wholes{-1, 1, 3, 2} : Wholes{-1, 2, 1, 3});
  auto& type = *model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx::TensorProto::UINT8);
  model.number("onnx::255", 255).node("Cast", {"x"}, {"f"}, {{"to", 1}}).node("Div", {"f", "onnx::255"}, {"d"});
  if (last) model.node("Transpose", {"d"}, {"t"}, {{"perm", Wholes{0, 3, 1, 2}}});
  model.node("Flatten", {last ? "t" : "d"}, {"y"});
  const Values found = outputs(model.file(), {0, 51, 102, 153, 204, 255}), expected{0, 0.4f, 0.8f, 0.2f, 0.6f, 1};
  REQUIRE(found.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-6));
  OnnxFile file = model.file();
  CHECK(error_of([&] { file.set_pixels(Pixels::to_one); }) ==
        "net.onnx: its input has whole numbers of 0 to 255: --pixels is for networks that read float32");
}

TEST_CASE("Classes may have two dimensions of 1 behind them") {
  OnnxModel model({-1, 2, 2, 2});
  model.tensor<float>("conv.weight", {3, 2, 1, 1}, {1, 0, 0, 1, 1, 1});
  model.node("GlobalAveragePool", {"x"}, {"p"}).node("Conv", {"p", "conv.weight"}, {"y"});
  CHECK(outputs(model.file(), {1, 10, 3, 10, 1, 10, 3, 10}) == Values{2, 10, 12});
  CHECK(exported_task(model.file()).classes == 3);
}

// A constant that a file repeats for every image of a batch, x {batch, 1, 1, 2} being the images, and y both.
struct Repeated {
  explicit Repeated(std::int64_t batch = -1) : model({batch, 1, 1, 2}) {
    model.tensor<std::int64_t>("onnx::rest", {3}, {1, 1, 2}).tensor<std::int64_t>("onnx::one", {1}, {1});
    model.tensor<std::int64_t>("onnx::0", {}, {0}).tensor<std::int64_t>("onnx::1", {}, {1});
    model.tensor<float>("onnx::grid", {1, 1, 1, 2}, {7, 8}).number("onnx::zero", 0);
    model.node("Shape", {"x"}, {"shape"}).node("Gather", {"shape", "onnx::0"}, {"count"});
    model.node("Shape", {"x"}, {"batch"}, {{"end", 1}}).node("Concat", {"batch", "onnx::rest"}, {"to"}, {{"axis", 0}});
  }

  // Concatenates the constant and the images.
  OnnxModel& behind(const std::string& constant) {
    return model.node("Concat", {"x", constant}, {"both"}, {{"axis", 1}}).node("Flatten", {"both"}, {"y"});
  }

  OnnxModel model;
};

void check_repeated(const OnnxModel& model) {
  const OnnxFile file = model.file();
  CHECK(outputs(file, {1, 2}) == Values{1, 2, 7, 8});
  CHECK(outputs(file, {1, 2, 3, 4, 5, 6}, 3) == Values{1, 2, 7, 8, 3, 4, 7, 8, 5, 6, 7, 8});
}

TEST_CASE("Constants that follow the batch are repeated for every image of any batch") {
  Repeated r(GENERATE(-1, 1, 2));
  OnnxModel& m = r.model;
  SECTION("by Expand") {
    check_repeated((m.node("Expand", {"onnx::grid", "to"}, {"c"}), r.behind("c")));
  }
  SECTION("by Tile") {
    m.node("Concat", {"batch", "onnx::one", "onnx::one", "onnx::one"}, {"times"}, {{"axis", 0}});
    check_repeated((m.node("Tile", {"onnx::grid", "times"}, {"c"}), r.behind("c")));
  }
  SECTION("by a sum with zeros") {
    m.node("ConstantOfShape", {"to"}, {"zeros"}).node("Add", {"zeros", "onnx::grid"}, {"c"});
    check_repeated(r.behind("c"));
  }
  SECTION("by a choice") {
    m.tensor<float>("onnx::other", {1, 1, 1, 2}, {0, 8}).tensor<float>("onnx::sevens", {1}, {7});
    m.node("Expand", {"onnx::other", "to"}, {"o"}).node("Equal", {"o", "onnx::zero"}, {"is"});
    check_repeated((m.node("Where", {"is", "onnx::sevens", "o"}, {"c"}), r.behind("c")));
  }
  SECTION("and rearranged") {
    m.tensor<std::int64_t>("onnx::columns", {2}, {-1, 1}).tensor<std::int64_t>("onnx::back", {4}, {-1, 1, 1, 2});
    m.node("Expand", {"onnx::grid", "to"}, {"e"}).node("Reshape", {"e", "onnx::columns"}, {"column"});
    check_repeated((m.node("Reshape", {"column", "onnx::back"}, {"c"}), r.behind("c")));
  }
  SECTION("as parts of rows that images follow") {  // 7 8 7 8 ... for {2 batch}
    m.tensor<std::int64_t>("onnx::flat", {1}, {-1}).tensor<std::int64_t>("onnx::back", {2}, {-1, 2});
    m.node("Expand", {"onnx::grid", "to"}, {"e"}).node("Reshape", {"e", "onnx::flat"}, {"c"});
    m.node("Reshape", {"x", "onnx::flat"}, {"row"}).node("Add", {"row", "c"}, {"s"});
    CHECK(outputs(m.node("Reshape", {"s", "onnx::back"}, {"y"}).file(), {1, 2, 3, 4, 5, 6}, 3) ==
          Values{8, 10, 10, 12, 12, 14});
  }
}

TEST_CASE("Parameters that follow the batch are repeated for every image of any batch") {
  Repeated r(GENERATE(-1, 2));
  r.model.tensor<float>("token", {1, 1, 1, 2}, {7, 8});
  const bool tile = GENERATE(true, false);
  if (tile) r.model.node("Concat", {"batch", "onnx::one", "onnx::one", "onnx::one"}, {"times"}, {{"axis", 0}});
  r.model.node(tile ? "Tile" : "Expand", {"token", tile ? "times" : "to"}, {"c"});
  check_repeated(r.behind("c"));
}

TEST_CASE("Constants of a fixed batch that are equal for its images are repeated for every image") {
  Repeated r(2);
  SECTION("beside images") {
    r.model.tensor<float>("onnx::c", {2, 1, 1, 2}, {7, 8, 7, 8});
    check_repeated(r.behind("onnx::c"));
  }
  SECTION("added to images") {
    r.model.tensor<float>("onnx::c", {2, 1, 1, 2}, {7, 8, 7, 8});
    r.model.node("Add", {"x", "onnx::c"}, {"s"}).node("Flatten", {"s"}, {"y"});
    CHECK(outputs(r.model.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{8, 10, 10, 12, 12, 14});
  }
  SECTION("but not others") {
    r.model.tensor<float>("onnx::c", {2, 1, 1, 2}, {7, 8, 7, 9});
    CHECK(r.behind("onnx::c").problems() ==
          Names{"node n_both (Concat): a constant has other values for each image of a batch, such as their numbers: "
                "export without it"});
  }
}

// As position encodings are computed, from a constant or a parameter that the exporter repeated for the file's batch.
TEST_CASE("What a file of a fixed batch computes from equal images and parameters is repeated for every image") {
  Repeated r(2);
  OnnxModel& m = r.model;
  m.tensor<float>("onnx::c", {2, 1, 1, 2}, {7, 8, 7, 8}).tensor<float>("scale", {2}, {10, 100});
  m.tensor<float>("conv.weight", {1, 1, 1, 1}, {2});
  SECTION("by a convolution") {
    m.node("Conv", {"onnx::c", "conv.weight"}, {"c"}).node("Add", {"x", "c"}, {"s"}).node("Flatten", {"s"}, {"y"});
    CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{15, 18, 17, 20, 19, 22});
    CHECK(test::trained_names(m.read().graph) == std::set<std::string>{"conv.weight"});
  }
  SECTION("by products, and rearranged") {
    m.tensor<std::int64_t>("onnx::rows", {2}, {2, 2}).tensor<std::int64_t>("onnx::images", {4}, {2, 1, 1, 2});
    m.node("Reshape", {"onnx::c", "onnx::rows"}, {"rows"}).node("Mul", {"rows", "scale"}, {"p"});
    m.node("Reshape", {"p", "onnx::images"}, {"c"});
    m.node("Concat", {"x", "c"}, {"both"}, {{"axis", 1}}).node("Flatten", {"both"}, {"y"});
    CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{1, 2, 70, 800, 3, 4, 70, 800, 5, 6, 70, 800});
  }
  SECTION("by tiles of a computed image") {
    m.tensor<float>("onnx::one_image", {1, 1, 1, 2}, {7, 8}).tensor<std::int64_t>("onnx::times", {4}, {2, 1, 1, 1});
    m.node("Conv", {"onnx::one_image", "conv.weight"}, {"p"}).node("Tile", {"p", "onnx::times"}, {"c"});
    m.node("Concat", {"x", "c"}, {"both"}, {{"axis", 2}}).node("Flatten", {"both"}, {"y"});
    CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{1, 2, 14, 16, 3, 4, 14, 16, 5, 6, 14, 16});
  }
  SECTION("for parts of images") {  // as masks of windows are
    m.tensor<std::int64_t>("onnx::parts", {2}, {-1, 1}).tensor<float>("onnx::mask", {4, 1}, {7, 8, 7, 8});
    m.tensor<float>("bias", {1, 1}, {10}).tensor<std::int64_t>("onnx::back", {2}, {-1, 2});
    m.node("Reshape", {"x", "onnx::parts"}, {"parts"}).node("Add", {"bias", "onnx::mask"}, {"c"});
    m.node("Add", {"parts", "c"}, {"s"}).node("Reshape", {"s", "onnx::back"}, {"y"});
    CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{18, 20, 20, 22, 22, 24});
  }
  SECTION("but not parameters of each image") {
    m.tensor<float>("token", {2, 1, 1, 2}, {7, 8, 7, 8}).node("Relu", {"x"}, {"r"}).node("Add", {"r", "token"}, {"s"});
    CHECK(m.node("Flatten", {"s"}, {"y"}).problems() ==
          Names{"node n_s (Add): parameters are combined with images of a batch of 2: export with an open batch"});
  }
}

TEST_CASE("Constants of a fixed batch for rows that images follow are repeated for every image") {
  const std::int64_t batch = GENERATE(1, 2);
  OnnxModel m({batch, 1, 1, 2});
  const Values values = batch == 1 ? Values{7, 8} : Values{7, 8, 7, 8};
  m.tensor<std::int64_t>("onnx::flat", {1}, {-1}).tensor<std::int64_t>("onnx::back", {2}, {-1, 2});
  m.tensor<float>("onnx::c", {2 * batch}, values).node("Reshape", {"x", "onnx::flat"}, {"row"});
  m.node("Add", {"row", "onnx::c"}, {"s"}).node("Reshape", {"s", "onnx::back"}, {"y"});
  CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{8, 10, 10, 12, 12, 14});
}

// As BERT looks up the types of its tokens.
TEST_CASE("Rows of a table are repeated for every image") {
  const std::int64_t batch = GENERATE(-1, 1, 2);
  Repeated r(batch);
  OnnxModel& m = r.model;
  m.parameter("table", {4, 1}).tensor<std::int64_t>("onnx::places", {1, 1, 2}, {3, 1});
  if (batch < 0) {
    m.tensor<std::int64_t>("onnx::two", {1}, {2});
    m.node("Concat", {"batch", "onnx::one", "onnx::two"}, {"all"}, {{"axis", 0}});
    m.node("Expand", {"onnx::places", "all"}, {"places"}).node("Gather", {"table", "places"}, {"rows"});
  } else {
    Wholes places{3, 1, 3, 1};
    places.resize(static_cast<std::size_t>(2 * batch));
    m.tensor<std::int64_t>("onnx::all", {batch, 1, 2}, places).node("Gather", {"table", "onnx::all"}, {"rows"});
  }
  m.tensor<std::int64_t>("onnx::like", {4}, {batch, 1, 1, 2}).node("Reshape", {"rows", "onnx::like"}, {"c"});
  m.node("Add", {"x", "c"}, {"s"}).node("Flatten", {"s"}, {"y"});
  CHECK(outputs(m.file(), {1, 2, 3, 4, 5, 6}, 3) == Values{4, 3, 6, 5, 8, 7});
}

TEST_CASE("Constants with other values for each image are refused") {
  Repeated r;
  OnnxModel& m = r.model;
  const std::string end = ", which differs in training: export without it";
  SECTION("the images' numbers") {
    m.node("Range", {"onnx::0", "count", "onnx::1"}, {"numbers"}).node("Cast", {"numbers"}, {"real"}, {{"to", 1}});
    m.tensor<std::int64_t>("onnx::column", {4}, {-1, 1, 1, 1}).node("Reshape", {"real", "onnx::column"}, {"c"});
    m.node("Add", {"x", "c"}, {"s"}).node("Flatten", {"s"}, {"y"});
    CHECK(m.problems() == Names{"node n_s (Add): a constant has other values for each image of a batch, such as their "
                                "numbers: export without it"});
  }
  SECTION("their number") {
    m.node("Cast", {"count"}, {"real"}, {{"to", 1}}).node("Div", {"x", "real"}, {"s"}).node("Flatten", {"s"}, {"y"});
    CHECK(m.problems() == Names{"node n_s (Div): a constant depends on the number of images in a batch" + end});
  }
  SECTION("places in a table") {
    m.parameter("table", {100, 2}).node("Range", {"onnx::0", "count", "onnx::1"}, {"numbers"});
    m.node("Gather", {"table", "numbers"}, {"c"}).node("Flatten", {"x"}, {"f"}).node("Add", {"f", "c"}, {"y"});
    CHECK(m.problems() == Names{"node n_c (Gather): a constant has other values for each image of a batch, such as "
                                "their numbers: export without it"});
  }
}

// The bytes of these values in a file beside the model, and a tensor that refers to them.
void store_outside(onnx::TensorProto& tensor, const std::filesystem::path& data, const Values& values) {
  test::write_text(data.string(), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  tensor.clear_float_data();
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  onnx::StringStringEntryProto& entry = *tensor.add_external_data();
  entry.set_key("location");
  entry.set_value(data.filename().string());
}

// y is x plus a constant of a node.
OnnxModel with_constant(onnx::TensorProto*& tensor) {
  OnnxModel model({-1, 1, 1, 2});
  model.node("Constant", {}, {"c"});
  onnx::AttributeProto& value = *model.graph().mutable_node(0)->add_attribute();
  value.set_name("value");
  value.set_type(onnx::AttributeProto::TENSOR);
  tensor = value.mutable_t();
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  tensor->add_dims(2);
  model.node("Add", {"x", "c"}, {"s"}).node("Flatten", {"s"}, {"y"});
  return model;
}

TEST_CASE("Constants of nodes may be in another file") {
  const test::TemporaryFolder folder;
  onnx::TensorProto* tensor = nullptr;
  const OnnxModel model = with_constant(tensor);
  store_outside(*tensor, folder / "net.data", {10, 20});
  test::write_text((folder / "net.onnx").string(), model.bytes());
  CHECK(outputs(OnnxFile::read(folder / "net.onnx"), {1, 2}) == Values{11, 22});
  std::filesystem::remove(folder / "net.data");
  CHECK(error_of([&] { OnnxFile::read(folder / "net.onnx"); }) ==
        fmt::format("{}: {}: missing: copy it together with the ONNX file", (folder / "net.onnx").string(),
                    (folder / "net.data").string()));
}

TEST_CASE("A model and its data may be links into another folder") {
  const test::TemporaryFolder folder;
  namespace fs = std::filesystem;
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder / "snapshots/1");
  onnx::TensorProto* tensor = nullptr;
  const OnnxModel model = with_constant(tensor);
  store_outside(*tensor, folder / "blobs/net.data", {10, 20});
  test::write_text((folder / "blobs/1234").string(), model.bytes());
  const fs::path link = folder / "snapshots/1/net.onnx", data = folder / "snapshots/1/net.data";
  fs::create_symlink("../../blobs/1234", link);
  SECTION("both, as in Hugging Face's cache") {
    fs::rename(folder / "blobs/net.data", folder / "blobs/5678");
    fs::create_symlink("../../blobs/5678", data);
    CHECK(outputs(OnnxFile::read(link), {1, 2}) == Values{11, 22});
  }
  SECTION("the model alone") {
    CHECK(outputs(OnnxFile::read(link), {1, 2}) == Values{11, 22});
  }
  SECTION("but not into a third one") {
    fs::create_symlink("/etc/passwd", data);
    CHECK(error_of([&] { OnnxFile::read(link); }) ==
          link.string() + ": : its values are in net.data, outside the file's folder");
  }
}

TEST_CASE("Constants that are not finite are refused with their name and number") {
  OnnxModel model({-1, 1, 1, 2});
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const std::string end = " NaN or infinite, so the network cannot be trained: export it with finite ones";
  SECTION("stored ones") {
    model.tensor<float>("onnx::c", {2}, {kNone, 1}).node("Add", {"x", "onnx::c"}, {"s"});
    CHECK(model.node("Flatten", {"s"}, {"y"}).problems() == Names{"stored tensor onnx::c: 1 of its 2 values is" + end});
  }
  SECTION("numbers") {
    model.number("onnx::c", kInfinity).node("Relu", {"x"}, {"r"}).node("Mul", {"r", "onnx::c"}, {"s"});
    CHECK(model.node("Flatten", {"s"}, {"y"}).problems() == Names{"a constant of n_s: 1 of its 2 values is" + end});
  }
  SECTION("of channels") {
    OnnxModel(Wholes{-1, 2, 1, 1}).proto.Swap(&model.proto);
    model.tensor<float>("onnx::d", {2, 1, 1}, {kNone, kNone});
    model.node("Sub", {"x", "onnx::d"}, {"s"});
    CHECK(model.node("Flatten", {"s"}, {"y"}).problems() ==
          Names{"stored tensor onnx::d: 2 of its 2 values are" + end});
  }
  SECTION("masks of a softmax are minus infinity") {
    model.tensor<float>("onnx::c", {2}, {-kInfinity, 0})
        .node("Relu", {"x"}, {"r"})
        .node("Add", {"r", "onnx::c"}, {"s"});
    model.node("Softmax", {"s"}, {"p"}, {{"axis", -1}}).node("Flatten", {"p"}, {"y"});
    CHECK(outputs(model.file(), {1, 2}) == Values{0, 1});
  }
  SECTION("padding of a max pool is minus infinity") {
    model.tensor<std::int64_t>("pads", {8}, {0, 0, 0, 1, 0, 0, 0, 0}).number("least", -kInfinity);
    model.node("Relu", {"x"}, {"r"}).node("Neg", {"r"}, {"s"}).node("Pad", {"s", "pads", "least"}, {"p"});
    model.node("MaxPool", {"p"}, {"m"}, {{"kernel_shape", Wholes{1, 2}}}).node("Flatten", {"m"}, {"y"});
    CHECK(outputs(model.file(), {1, 2}) == Values{-1, -1});
  }
}

}  // namespace
}  // namespace annulus
