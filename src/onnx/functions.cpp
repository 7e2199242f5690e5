#include "src/onnx/functions.h"

#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "src/onnx/attributes.h"

namespace annulus {
namespace {

constexpr std::size_t kDeepest = 100, kMostNodes = std::size_t{1} << 17, kMostWrittenOut = std::size_t{1} << 28;

// Later format versions have default values for functions' attributes, which our library keeps as unknown fields.
constexpr int kDefaults = 11;

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Key = std::pair<std::string, std::string>;  // domain and name

Key key(const std::string& domain, const std::string& name) {
  return {standard_domain(domain) ? "" : domain, name};
}

std::map<std::string, onnx::AttributeProto> attributes_of(const onnx::NodeProto& call,
                                                          const onnx::FunctionProto& function) {
  std::map<std::string, onnx::AttributeProto> all;
  for (const onnx::AttributeProto& attribute : call.attribute()) all[attribute.name()] = attribute;
  const auto& fields = function.GetReflection()->GetUnknownFields(function);
  onnx::AttributeProto missing;
  for (int i = 0; i < fields.field_count(); ++i)
    if (fields.field(i).number() == kDefaults &&
        fields.field(i).type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED &&
        missing.ParseFromString(fields.field(i).length_delimited()))
      all.try_emplace(missing.name(), missing);
  return all;
}

class Inliner {
 public:
  Inliner(const onnx::ModelProto& model, std::int64_t operators) : operators_(operators) {
    for (const onnx::FunctionProto& function : model.functions())
      if (!functions_.emplace(key(function.domain(), function.name()), &function).second)
        fail("function {} is defined twice", function.name());
    for (const onnx::ValueInfoProto& input : model.graph().input()) taken_.insert(input.name());
    for (const onnx::TensorProto& tensor : model.graph().initializer()) taken_.insert(tensor.name());
    for (const onnx::NodeProto& node : model.graph().node()) taken_.insert(node.output().begin(), node.output().end());
  }

  void run(onnx::GraphProto& graph) {
    Nodes nodes;
    nodes.Swap(graph.mutable_node());
    for (onnx::NodeProto& node : nodes) append(std::move(node), *graph.mutable_node());
  }

 private:
  // A call's own names and attributes.
  struct Call {
    std::string prefix;
    std::map<std::string, std::string> names;  // by the function's
    std::map<std::string, onnx::AttributeProto> attributes;
  };

  void append(onnx::NodeProto node, Nodes& to) {
    for (onnx::AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) run(*attribute.mutable_g());
    const auto found = functions_.find(key(node.domain(), node.op_type()));
    if (found == functions_.end())
      *to.Add() = std::move(node);
    else
      expand(node, *found->second, to);
  }

  void expand(const onnx::NodeProto& node, const onnx::FunctionProto& function, Nodes& to) {
    expect_callable(node, function);
    const std::string& name = node.name().empty() ? function.name() : node.name();
    Call call{name + "/", {}, attributes_of(node, function)};
    for (int i = 0; i < function.input_size(); ++i)
      call.names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
    std::vector<std::pair<std::string, std::string>> passed;  // outputs that are inputs
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      const auto [place, added] = call.names.try_emplace(function.output(i), node.output(i));
      if (!added) passed.emplace_back(place->second, node.output(i));
    }
    calls_.push_back(&function);
    for (onnx::NodeProto inner : function.node()) {
      if (++nodes_ > kMostNodes) fail("its functions have more than {} nodes, if they are written out", kMostNodes);
      count(inner.ByteSizeLong());
      bind(inner, call);
      append(std::move(inner), to);
    }
    calls_.pop_back();
    for (const auto& [input, output] : passed) {
      onnx::NodeProto& same = *to.Add();
      same.set_name(call.prefix + output);
      same.set_op_type("Identity");
      same.add_input(input);
      same.add_output(output);
    }
  }

  void expect_callable(const onnx::NodeProto& node, const onnx::FunctionProto& function) const {
    if (std::ranges::find(calls_, &function) != calls_.end()) fail("function {} calls itself", function.name());
    if (calls_.size() == kDeepest) fail("its functions are nested more than {} deep", kDeepest);
    if (node.input_size() > function.input_size() || node.output_size() > function.output_size())
      fail("node {} has {} inputs and {} outputs, but function {} has {} and {}", node.name(), node.input_size(),
           node.output_size(), function.name(), function.input_size(), function.output_size());
    for (const onnx::OperatorSetIdProto& set : function.opset_import())
      if (standard_domain(set.domain()) && set.version() != operators_)
        fail("function {} has operators of version {}, but the file of version {}: export it with one version",
             function.name(), set.version(), operators_);
  }

  void count(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > kMostWrittenOut)
      fail("its functions have more than {} MiB, if they are written out", kMostWrittenOut >> 20);
  }

  // Gives a function's node, and the graphs in the node's attributes, a call's names and attributes.
  void bind(onnx::NodeProto& node, Call& call) {
    count(call.prefix.size());
    node.set_name(call.prefix + (node.name().empty() ? node.op_type() : node.name()));
    for (std::string& input : *node.mutable_input()) input = renamed(input, call);
    for (std::string& output : *node.mutable_output()) output = renamed(output, call);
    google::protobuf::RepeatedPtrField<onnx::AttributeProto> bound;
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      const auto given = call.attributes.find(attribute.ref_attr_name());
      if (!attribute.ref_attr_name().empty() && given == call.attributes.end()) continue;
      if (!attribute.ref_attr_name().empty()) count(given->second.ByteSizeLong());
      onnx::AttributeProto& own = *bound.Add() = attribute.ref_attr_name().empty() ? attribute : given->second;
      own.set_name(attribute.name());
      if (attribute.has_g()) bind(*own.mutable_g(), call);
    }
    node.mutable_attribute()->Swap(&bound);
  }

  void bind(onnx::GraphProto& graph, Call& call) {
    for (auto* values : {graph.mutable_input(), graph.mutable_output()})
      for (onnx::ValueInfoProto& value : *values) value.set_name(renamed(value.name(), call));
    for (onnx::TensorProto& tensor : *graph.mutable_initializer()) tensor.set_name(renamed(tensor.name(), call));
    for (onnx::NodeProto& node : *graph.mutable_node()) bind(node, call);
  }

  std::string renamed(const std::string& name, Call& call) {
    if (name.empty()) return name;
    const auto [place, added] = call.names.try_emplace(name);
    if (added) {
      const std::string wanted = place->second = call.prefix + name;
      for (int& number = numbers_[wanted]; !taken_.insert(place->second).second; ++number)
        place->second = fmt::format("{}_{}", wanted, number + 2);
    }
    count(place->second.size());
    return place->second;
  }

  std::int64_t operators_;
  std::map<Key, const onnx::FunctionProto*> functions_;
  std::set<std::string> taken_;                    // by values
  std::map<std::string, int> numbers_;             // how many numbers were tried for a name
  std::vector<const onnx::FunctionProto*> calls_;  // that are being expanded
  std::size_t nodes_ = 0, bytes_ = 0;              // in all calls
};

}  // namespace

void inline_functions(onnx::ModelProto& model, std::int64_t operators) {
  if (model.functions_size() == 0) return;
  Inliner(model, operators).run(*model.mutable_graph());
  model.clear_functions();
}

}  // namespace annulus
