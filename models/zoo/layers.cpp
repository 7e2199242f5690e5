#include "models/zoo/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace annulus {

Value image_input(Graph& graph, const Task& task) {
  return graph.add("input", ImageInput{task.mean, task.stddev}, {Graph::kImages});
}

Graph with_loss(Graph graph, const Task& task, Value logits) {
  if (task.mixed_labels) graph.set_labels(LabelForm::mixed);
  if (task.labels != LabelKind::one_class) graph.set_labels(LabelForm::targets, task.classes);
  Operation loss = SoftmaxCrossEntropy{task.label_smoothing, task.class_weights};
  if (task.loss == Loss::binary) loss = BinaryCrossEntropy{task.label_smoothing, task.class_weights};
  if (task.labels == LabelKind::several_classes) loss = MultiLabelCrossEntropy{};
  if (task.labels == LabelKind::values) loss = MeanSquaredError{};
  graph.add("loss", std::move(loss), {logits, Graph::kLabels});
  return graph;
}

std::uint32_t next_dropout(const Graph& graph) {
  return static_cast<std::uint32_t>(std::ranges::count_if(graph.nodes(), Graph::reads_sample_keys));
}

Value dropout(Graph& graph, const std::string& name, float rate, Value x) {
  return graph.add(name, Dropout{rate, next_dropout(graph)}, {x, Graph::kSampleKeys});
}

void Sequential::add(Operation operation) {
  output_ = graph_.add(next_name(), std::move(operation), {output_});
}

void Sequential::add_dropout(float rate) {
  output_ = dropout(graph_, next_name(), rate, output_);
}

std::string Sequential::next_name() {
  return fmt::format("{}.{}", name_, layers_++);
}

Value convolution_relu(Graph& graph, const std::string& name, Value x, const Convolution& convolution) {
  return graph.add(name + ".relu", Relu{}, {graph.add(name, convolution, {x})});
}

Value dense_relu(Graph& graph, const std::string& name, Value x, const Dense& dense) {
  return graph.add(name + ".relu", Relu{}, {graph.add(name, dense, {x})});
}

float fan_out_stddev(const Convolution& convolution) {
  return std::sqrt(2 / static_cast<float>(convolution.channels * convolution.kernel.area()));
}

}  // namespace annulus
