#pragma once

#include "models/zoo.h"

namespace annulus {

// What several of the zoo's models have in common.

Value image_input(Graph& graph, const Task& task);             // "input", where a model begins
Graph with_loss(Graph graph, const Task& task, Value logits);  // "loss", where it ends

// A dropout that draws other masks than those before it in the graph.
Value dropout(Graph& graph, const std::string& name, float rate, Value x);

// `name` and <name>.relu.
Value convolution_relu(Graph& graph, const std::string& name, Value x, const Convolution& convolution);
Value dense_relu(Graph& graph, const std::string& name, Value x, const Dense& dense);

// Of a convolution's first weights: sqrt(2 / fan-out), which keeps the variance of the gradients (He et al., "Delving
// deep into rectifiers", ICCV 2015, equation 14).
float fan_out_deviation(const Convolution& convolution);

}  // namespace annulus
