#include "src/onnx/network_file.h"

#include <filesystem>

#include "src/onnx/read.h"

namespace annulus {

bool is_network_file(const std::string& model) {
  return model.ends_with(".onnx");
}

std::string network_name(const std::string& model) {
  return is_network_file(model) ? std::filesystem::path(model).filename().string() : zoo_entry(model).name;
}

Graph make_network(const std::string& model, const std::string& onnx, const Task& task) {
  return onnx.empty() ? make_model(model, task) : read_network(OnnxFile::parse(onnx, model), task).graph;
}

Graph make_network(const std::string& model, const Task& task) {
  return is_network_file(model) ? read_network(OnnxFile::read(model), task).graph : make_model(model, task);
}

Task default_task(const std::string& model) {
  if (is_network_file(model)) return exported_task(OnnxFile::read(model));
  return zoo_entry(model).task();
}

}  // namespace annulus
