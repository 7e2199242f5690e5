#pragma once

#include "models/zoo/zoo.h"

namespace annulus {

// Layers that several zoo models share.

Value image_input(Graph& graph, const Task& task);             // "input", a model's first node
Graph with_loss(Graph graph, const Task& task, Value logits);  // "loss", the last node

// Returns the number of a graph's next dropout, whose masks then differ from the previous ones.
std::uint32_t next_dropout(const Graph& graph);
// A dropout with this number.
Value dropout(Graph& graph, const std::string& name, float rate, Value x);

// Layers called <name>.0, <name>.1, ..., each reading the layer before, as in PyTorch's Sequential.
class Sequential {
 public:
  Sequential(Graph& graph, std::string name, Value input) : graph_(graph), name_(std::move(name)), output_(input) {}

  void add(Operation operation);
  void add_dropout(float rate);
  Value output() const { return output_; }  // the last layer's

 private:
  std::string next_name();

  Graph& graph_;
  const std::string name_;
  Value output_;
  std::size_t layers_ = 0;
};

// A layer called `name`, and a ReLU called <name>.relu. Return the ReLU's output.
Value convolution_relu(Graph& graph, const std::string& name, Value x, const Convolution& convolution);
Value dense_relu(Graph& graph, const std::string& name, Value x, const Dense& dense);

// Returns a std for a convolution's initial weights: sqrt(2 / fan-out), which keeps the gradients' variance (He et al.,
// "Delving deep into rectifiers", ICCV 2015, equation 14).
float fan_out_stddev(const Convolution& convolution);

}  // namespace annulus
