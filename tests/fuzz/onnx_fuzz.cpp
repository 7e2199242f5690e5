#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/read.h"

using namespace annulus;

namespace {

class Silent : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

// The checkpoint of a network has its file without the values of parameters, which must be the same network.
void expect_same_without_values(const OnnxFile& file, const Task& task) {
  const ImportedNetwork network = read_network(file, task);
  for (const auto& [name, values] : network.values)
    if (values.empty()) __builtin_trap();
  const OnnxFile stripped = OnnxFile::parse(without_parameters(file, network), "stripped");
  if (read_network(stripped, task).graph.description() != network.graph.description()) __builtin_trap();
}

}  // namespace

// The input is an ONNX model in protobuf's text format, because most changes of the binary format are not one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Silent silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  onnx::ModelProto model;
  if (!parser.ParseFromString({reinterpret_cast<const char*>(data), size}, &model)) return 0;
  try {
    const OnnxFile file = OnnxFile::parse(model.SerializeAsString(), "tried");
    Task task = exported_task(file);
    const auto found = problems(file, task);
    if (std::ranges::any_of(found, &std::string::empty)) __builtin_trap();
    if (!found.empty()) return 0;
    expect_same_without_values(file, task);
    ++task.classes;  // the last layer is replaced
    expect_same_without_values(file, task);
  } catch (const Error&) {
  }
  return 0;
}
