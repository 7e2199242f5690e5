#include "src/onnx/reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"
#include "src/io/printable.h"
#include "src/io/shortened.h"
#include "src/onnx/batch_constants.h"
#include "src/onnx/finite.h"
#include "src/onnx/fold.h"
#include "src/onnx/input_normalization.h"
#include "src/onnx/network_input.h"
#include "src/onnx/node_scope.h"
#include "src/onnx/properties.h"
#include "src/onnx/read.h"
#include "src/onnx/trained_summary.h"

namespace annulus {
namespace {

const ReadNodes& read_nodes() {
  static const ReadNodes all = [] {
    ReadNodes nodes;
    for (const auto add : {add_convolutions, add_products, add_elementwise, add_comparisons, add_norms, add_pools,
                           add_attention, add_shaping, add_scans, add_resizes, add_patches, add_quantized, add_random})
      add(nodes);
    return nodes;
  }();
  return all;
}

// Advice for operators that have no function, beside the general advice.
std::string nearest(const std::string& op) {
  static const std::map<std::string, std::string> all{
      {"LpNormalization", "ReduceL2 and Div"},
      {"Loop", "a network without loops that depend on its input"},
      {"Scan", "a network without loops that depend on its input"},
      {"LSTM", "a network without recurrent layers"},
      {"GRU", "a network without recurrent layers"},
      {"RNN", "a network without recurrent layers"},
      {"TopK", "its input, outside the network"},
      {"Sin", "buffers for its angles, and dynamo=True if it has them already"},
      {"Cos", "buffers for its angles, and dynamo=True if it has them already"},
      {"ArgMax", "its input: logits"},
  };
  const auto found = all.find(op);
  return found != all.end() ? found->second : "an operator that `annulus models --check` lists";
}

// Returns a parameter's layer: "features.0" for "features.0.weight", and "attention.in_proj_" for
// "attention.in_proj_weight".
std::string layer_of(const std::string& parameter) {
  for (const std::string_view suffix : {".weight", ".bias", ".running_mean", ".running_var", "weight", "bias"})
    if (parameter.ends_with(suffix) && parameter.size() > suffix.size())
      return parameter.substr(0, parameter.size() - suffix.size());
  return parameter;
}

Shape shape_of(const onnx::TensorProto& tensor, bool transposed) {
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  if (transposed) std::ranges::reverse(shape);
  return shape;
}

// Adds the values that a node reads, also in branches.
void add_reads(const onnx::NodeProto& node, std::set<std::string>& values) {
  values.insert(node.input().begin(), node.input().end());
  for (const onnx::AttributeProto& attribute : node.attribute())
    for (const onnx::NodeProto& inner : attribute.g().node()) add_reads(inner, values);
}

std::optional<double> only_value(const HostTensor& tensor) {
  if (tensor.size() == 0) return std::nullopt;
  for (std::size_t i = 1; i < tensor.size(); ++i)
    if (tensor.at(i) != tensor.at(0)) return std::nullopt;
  return tensor.at(0);
}

template <class Kind>
const Kind* get(const Item& item) {
  return std::get_if<Kind>(&item);
}

}  // namespace

Graph empty_graph(const Task& task) {
  return task.reads_tokens() ? Graph(task.tokens) : Graph(task.image);
}

std::string operator_names() {
  std::vector<std::string_view> names{"If"};
  for (const auto& [name, read] : read_nodes()) names.push_back(name);
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, ", "));
}

Reader::Reader(const OnnxFile& file, const Task& task)
    : file_(file),
      task_(task),
      trained_(file),
      batch_(file.input_batch() > 0 ? file.input_batch() : kOpenBatch),
      builder_(empty_graph(task)),
      input_(make_network_input(file, task, batch_)) {
  for (const onnx::NodeProto& node : file.graph().node()) count_reads(node);
  items_ = input_->add(builder_);
}

Reader::~Reader() = default;

const char* Reader::sample() const {
  return input_->sample();
}

Pixels Reader::pixels() const {
  return input_->pixels();
}

// Counts branches' reads, too.
void Reader::count_reads(const onnx::NodeProto& node) {
  for (const std::string& read : node.input()) ++readers_[read];
  for (const onnx::AttributeProto& attribute : node.attribute())
    for (const onnx::NodeProto& inner : attribute.g().node()) count_reads(inner);
}

Item& Reader::item(const std::string& name) {
  const auto [found, added] = items_.try_emplace(name);
  if (!added) return found->second;
  const auto stored = file_.initializers().find(name);
  if (stored == file_.initializers().end()) fail("nothing computes {}", name);
  if (is_real(*stored->second))
    found->second = FileTensor{stored->second};
  else
    found->second = std::make_shared<const HostTensor>(read_tensor(*stored->second));
  return found->second;
}

std::optional<Host> Reader::host(const Item& item) {
  if (const Host* known = get<Host>(item)) return *known;
  const auto* stored = get<FileTensor>(item);
  if (stored == nullptr || stored->transposed || OnnxFile::stripped(*stored->tensor)) return std::nullopt;
  if (trained_.of(*stored->tensor).training == Training::always) return std::nullopt;
  return converted(*stored->tensor);
}

const Host& Reader::converted(const onnx::TensorProto& tensor) {
  Host& converted = hosts_[&tensor];
  if (converted != nullptr) return converted;
  converted = std::make_shared<const HostTensor>(read_tensor(tensor));
  if (trained_.of(tensor).training == Training::in_layers) weights_.insert(converted);
  return converted;
}

// Evaluates a node if all inputs are constant. A stored tensor stays stored behind Identity, and a matrix behind
// Transpose.
bool Reader::fold(const onnx::NodeProto& node) {
  if (node.op_type() == "Identity") return false;
  const auto* first = node.input_size() == 1 ? get<FileTensor>(item(node.input(0))) : nullptr;
  if (first != nullptr && first->tensor->dims_size() == 2 && node.op_type() == "Transpose") return false;
  std::vector<Host> hosts;
  for (const std::string& name : node.input()) {
    if (name.empty()) {
      hosts.push_back(nullptr);
      continue;
    }
    const auto known = host(item(name));
    if (!known) return false;
    hosts.push_back(*known);
  }
  auto result = evaluate_for_batches(node.op_type(), Attributes(node), hosts);
  if (!result) return false;
  if (node.op_type() != "Constant") folded_ += result->size();
  if (folded_ > 8 * kMostConstantElements) fail("the constants that the file computes have too many elements");
  const auto computed = std::make_shared<const HostTensor>(std::move(*result));
  const bool in_layers = node.op_type() == "Constant"
                             ? trained_.constants_in_layers()
                             : std::ranges::any_of(hosts, [&](const Host& host) { return weights_.contains(host); });
  if (in_layers) weights_.insert(computed);
  items_[node.output(0)] = computed;
  return true;
}

void Reader::read(const onnx::NodeProto& node) {
  for (const std::string& output : node.output()) items_[output] = Unread{};
  try {
    for (const std::string& name : node.input())
      if (!name.empty() && get<Unread>(item(name)) != nullptr) return;
    if (node.output_size() == 0) fail("it has no output");
    if (!standard_domain(node.domain()))
      fail("operators of the domain {} are not supported: export the network without them", node.domain());
    if (fold(node)) return;
    if (node.op_type() == "If") return read_branch(node);
    const auto found = read_nodes().find(node.op_type());
    if (found == read_nodes().end()) fail("this operator is not supported: use {}", nearest(node.op_type()));
    NodeReader reader(*this, node);
    found->second(reader);
  } catch (const std::exception& error) {  // also the standard library's, for attributes that do not fit
    for (const std::string& output : node.output()) items_[output] = Unread{};
    const std::string name =
        node.name().empty() ? node.output_size() > 0 ? node.output(0) : "without a name" : node.name();
    problems_.push_back(shortened(printable(fmt::format("node {} ({}): {}", name, node.op_type(), error.what()))));
  }
}

// A condition that does not depend on the images selects the branch that is read.
void Reader::read_branch(const onnx::NodeProto& node) {
  const auto condition = node.input_size() == 1 ? host(item(node.input(0))) : std::nullopt;
  if (!condition || (*condition)->size() != 1) fail("its condition depends on the images: export one branch");
  const char* branch = (*condition)->at(0) != 0 ? "then_branch" : "else_branch";
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() != branch) continue;
    for (const onnx::TensorProto& tensor : attribute.g().initializer()) {
      expect_data(tensor);
      items_[tensor.name()] = std::make_shared<const HostTensor>(read_tensor(tensor));
    }
    for (const onnx::NodeProto& inner : attribute.g().node()) read(inner);
    for (int i = 0; i < std::min(node.output_size(), attribute.g().output_size()); ++i)
      items_[node.output(i)] = item(attribute.g().output(i).name());
  }
}

// Reads only the nodes on which the first output depends.
void Reader::run() {
  const auto& nodes = file_.graph().node();
  std::set<std::string> needed{file_.graph().output(0).name()};
  std::vector<bool> reads(static_cast<std::size_t>(nodes.size()));
  for (int i = nodes.size(); i-- > 0;) {
    if (std::ranges::none_of(nodes[i].output(), [&](const auto& output) { return needed.contains(output); })) continue;
    reads[static_cast<std::size_t>(i)] = true;
    add_reads(nodes[i], needed);
  }
  if (const std::string lost = lost_parameters(file_, trained_); !lost.empty()) problems_.push_back(printable(lost));
  for (int i = 0; i < nodes.size(); ++i)
    if (reads[static_cast<std::size_t>(i)]) read(nodes[i]);
  const auto output = items_.find(file_.graph().output(0).name());
  const auto* logits = output == items_.end() ? nullptr : get<Computed>(output->second);
  if (!problems_.empty() || logits == nullptr) return;
  try {
    items_[output->first] = Computed{input_->end(builder_, logits->value, notes_)};
  } catch (const Error& error) {
    problems_.push_back(shortened(printable(fmt::format("output {}: {}", output->first, error.what()))));
    return;
  }
  logits = get<Computed>(output->second);
  for (const NotFinite& constant : not_finite(builder_, logits->value))
    problems_.push_back(
        shortened(printable(fmt::format("{}: {}, so the network cannot be trained: export it with finite ones",
                                        source_of(constant.value), constant.problem))));
}

// The tensor that became a constant, or the layer that has it.
std::string Reader::source_of(Value value) const {
  for (const auto& [host, layer] : values_) {
    if (layer != value) continue;
    for (const auto& [tensor, converted] : hosts_)
      if (converted.get() == host) return "stored tensor " + tensor->name();
    for (const auto& [name, item] : items_)
      if (const Host* constant = get<Host>(item); constant != nullptr && constant->get() == host)
        return "constant " + name;
  }
  return "a constant of " + builder_.layer(value).name;
}

const char* Reader::untrained(const onnx::TensorProto& tensor) const {
  const auto found = untrained_.find(&tensor);
  return found == untrained_.end() ? nullptr : found->second;
}

Value Reader::output() const {
  const std::string& name = file_.graph().output(0).name();
  const auto found = items_.find(name);
  const auto* computed = found == items_.end() ? nullptr : get<Computed>(found->second);
  if (computed == nullptr) fail("its output {} does not depend on the input", name);
  return computed->value;
}

bool NodeReader::has(std::size_t input) const {
  return input < inputs() && !node_.input(static_cast<int>(input)).empty();
}

std::string NodeReader::written_call() const {
  return property(node_, PropertyField::node, "pkg.torch.onnx.fx_node");
}

bool NodeReader::used(std::size_t output) const {
  return output < outputs() && reader_.readers_.contains(node_.output(static_cast<int>(output)));
}

bool NodeReader::graph_output(std::size_t output) const {
  const auto& all = reader_.file_.graph().output();
  return std::ranges::any_of(all,
                             [&](const auto& value) { return value.name() == node_.output(static_cast<int>(output)); });
}

const Item& NodeReader::item(std::size_t input) const {
  if (!has(input)) fail("it has no input {}", input);
  return reader_.item(node_.input(static_cast<int>(input)));
}

Shape NodeReader::input_shape(std::size_t input) const {
  if (const auto* computed = as<Computed>(input)) return shape(computed->value);
  if (const auto* stored = as<FileTensor>(input)) return shape_of(*stored->tensor, stored->transposed);
  if (const auto* host = as<Host>(input)) return (*host)->shape;
  if (const auto* mask = std::get_if<RandomMask>(&item(input))) return mask->shape;
  if (const auto* tokens = std::get_if<Tokens>(&item(input))) return tokens->shape;
  fail("its input {} is a sequence", input);
}

Host NodeReader::constant(std::size_t input) const {
  return has(input) ? reader_.host(item(input)).value_or(nullptr) : nullptr;
}

const HostTensor& NodeReader::expect_constant(std::size_t input) const {
  const auto* stored = as<FileTensor>(input);
  if (stored != nullptr && trained(input) && reader_.trained_.marked())
    fail("its input {} is the parameter {}, which cannot be trained there: register it as a buffer, then export again",
         input, stored->tensor->name());
  if (stored != nullptr && !stored->transposed && !OnnxFile::stripped(*stored->tensor))
    return *reader_.converted(*stored->tensor);
  const Host host = constant(input);
  if (host == nullptr) fail("its input {} must be constant", input);
  return *host;
}

std::optional<double> NodeReader::number(std::size_t input) const {
  const Host host = constant(input);
  if (host == nullptr) return std::nullopt;
  const auto number = only_value(*host);
  return number == only_value(for_other_batch(*host)) ? number : std::nullopt;
}

double NodeReader::expect_number(std::size_t input) const {
  const auto number = only_value(expect_constant(input));
  if (number != only_value(for_other_batch(expect_constant(input)))) expect_same_for_batches(input);
  if (!number) fail("its input {} must be one number", input);
  return *number;
}

std::vector<std::int64_t> NodeReader::wholes(std::size_t input) const {
  const HostTensor& tensor = expect_constant(input);
  if (tensor.real()) fail("its input {} must be whole numbers", input);
  return tensor.wholes;
}

std::vector<std::int64_t> NodeReader::wholes_or(std::size_t input, const char* attribute) const {
  return has(input) ? wholes(input) : attributes.wholes(attribute);
}

bool NodeReader::trained(std::size_t input) const {
  const auto* stored = as<FileTensor>(input);
  return stored != nullptr && reader_.trained_.of(*stored->tensor).training == Training::always;
}

bool NodeReader::trained_in_layers(std::size_t input) const {
  const auto* stored = as<FileTensor>(input);
  return stored != nullptr && reader_.trained_.of(*stored->tensor).training == Training::in_layers;
}

std::size_t NodeReader::readers_of_other(std::size_t input) const {
  return reader_.readers_.at(node_.input(static_cast<int>(1 - input)));
}

std::optional<Stored> NodeReader::stored(std::size_t input) const {
  if (!is_layer(input) && elements(input_shape(input)) == 0) fail("its input {} has no elements", input);
  if (const auto* file = as<FileTensor>(input)) {
    const auto& decision = reader_.trained_.of(*file->tensor);
    return Stored{file->tensor, nullptr, file->transposed, decision.training == Training::never,
                  decision.parameter == file->tensor->name()};
  }
  if (const auto* host = as<Host>(input); host != nullptr && (*host)->real())
    return Stored{nullptr, *host, false, !reader_.weights_.contains(*host)};
  if (const auto* computed = as<Computed>(input); computed != nullptr && !reader_.builder_.batch(computed->value))
    return Stored{.value = computed->value};
  return std::nullopt;
}

Value NodeReader::value(std::size_t input) {
  return value(item(input));
}

Value NodeReader::operand(std::size_t input) {
  const auto* other = as<Computed>(1 - input);
  if (other == nullptr) return value(input);
  if (const Host host = constant(input); host != nullptr && host->other_batch != nullptr)
    return value(Item(constant_beside(input, other->value)));
  if (!is_scaled_pixels(reader_.builder_, other->value)) return value(input);
  return table(input, "combined with the images alone");
}

Value NodeReader::table(std::size_t input, const char* reason) {
  if (!trained(input) || reader_.trained_.marked()) return value(input);
  const FileTensor& stored = *as<FileTensor>(input);
  reader_.untrained_.emplace(stored.tensor, reason);
  const Value constant = value(Item(reader_.converted(*stored.tensor)));
  return stored.transposed ? transpose(constant, {1, 0}) : constant;
}

Value NodeReader::value(const Item& item) {
  if (const auto* computed = get<Computed>(item)) return computed->value;
  if (const auto host = reader_.host(item)) {
    const auto [known, added] = reader_.values_.try_emplace(host->get());
    if (!added) return known->second;
    reader_.kept_.push_back(*host);
    if ((*host)->other_batch != nullptr) return known->second = repeat_for_images(**host);
    const Shape shape = (*host)->shape;
    Constant constant{shape.empty() ? Shape{1} : shape, {}};
    for (std::size_t i = 0; i < (*host)->size(); ++i) constant.values.push_back(static_cast<float>((*host)->at(i)));
    const Value made = add(std::move(constant), {});
    if (const auto* stored = get<FileTensor>(item); stored != nullptr && reader_.weights_.contains(*host))
      reader_.builder_.layer(made).values = Stored{stored->tensor};
    return known->second = shape.empty() ? number_of(made) : made;
  }
  const auto* stored = get<FileTensor>(item);
  if (get<Tokens>(item) != nullptr)
    fail("it computes with tokens, which only embeddings may read: masks for padded texts are not supported");
  if (stored == nullptr) fail("one of its inputs is not an image or a parameter");
  const auto& decision = reader_.trained_.of(*stored->tensor);
  if (decision.training != Training::always)  // it is transposed
    return transpose(value(Item(reader_.converted(*stored->tensor))), {1, 0});
  const auto [known, added] = reader_.values_.try_emplace(stored->tensor);
  if (added) {
    const Shape shape = shape_of(*stored->tensor, false);
    const bool vector = std::ranges::count_if(shape, [](std::size_t extent) { return extent > 1; }) <= 1;
    known->second = reader_.builder_.add({decision.parameter,
                                          Operation(Learned{shape, vector ? Role::offset : Role::weight, ""}),
                                          {},
                                          {{stored->tensor}}});
    if (shape.empty()) known->second = number_of(known->second);
  }
  return stored->transposed ? transpose(known->second, {1, 0}) : known->second;
}

Value NodeReader::add(Operation operation, std::vector<Value> inputs) {
  return append(std::move(operation), std::move(inputs), {});
}

Value NodeReader::number_of(Value element) {
  return add(Reshape{Shape{}}, {element});
}

Value NodeReader::append(Operation operation, std::vector<Value> inputs, std::vector<Stored> parameters) {
  const auto is_number = [&](Value input) { return shape(input).empty(); };
  if (std::ranges::any_of(inputs, is_number)) {
    const bool all = std::ranges::all_of(inputs, is_number);
    for (Value& input : inputs)
      if (is_number(input)) input = reshape(input, {1});
    const Value made = append(std::move(operation), std::move(inputs), std::move(parameters));
    return all ? number_of(made) : made;
  }
  std::size_t outer = 1;
  for (const Value input : inputs) {
    const auto place = reader_.builder_.batch(input);
    if (!place || !Graph::has_node(input)) continue;
    outer = place->outer;
    break;
  }
  const std::string name = parameters.empty() ? default_name() : layer_name(parameters);
  return reader_.builder_.add({name, std::move(operation), std::move(inputs), std::move(parameters), outer});
}

Value NodeReader::add_erf(Value input) {
  const auto place = reader_.builder_.batch(input);
  return reader_.builder_.add({node_.name(), Erf{}, {input}, {}, place ? place->outer : 1});
}

// Finds the output extent that has the batch: it is where the input has it in row-major order. For a batch of one,
// several may be; then it is the extent that begins there, and preferably has size 1.
Value NodeReader::reshape(Value x, const Shape& to, std::optional<std::size_t> batch_axis) {
  if (reader_.builder_.computed_by<Reshape>(x) != nullptr) {
    const Value from = reader_.builder_.layer(x).inputs[0];
    return reshape(from, to, batch_axis);
  }
  const Shape from = shape(x);
  const auto place = reader_.builder_.batch(x);
  if (elements(from) != elements(to)) fail("{} cannot be reshaped to {}", to_string(from), to_string(to));
  if (!place) return from == to ? x : add(Reshape{to}, {x});
  const std::size_t before = elements(from, 0, place->axis) * place->outer, batch = reader_.batch_;
  struct Candidate {
    std::size_t axis, outer;
  };
  std::optional<Candidate> best;
  int best_rank = -1;
  std::size_t product = 1;
  for (std::size_t i = 0; i < to.size(); product *= to[i++]) {
    if (before % product != 0 || product * to[i] % (before * batch) != 0) continue;
    const bool begins = product == before, alone = begins && to[i] == batch;
    int rank = alone && i == place->axis ? 3 : alone ? 2 : begins ? 1 : 0;
    if (batch == 1 && to.size() == 2 && i == 0) rank = 4;
    if (batch_axis == i) rank = 5;
    if (rank > best_rank) {
      best = {i, before / product};
      best_rank = rank;
    }
  }
  if (!best) fail("{} cannot be reshaped to {} for another batch than {}", to_string(from), to_string(to), batch);
  if (from == to && *place == BatchPlace{best->axis, best->outer}) return x;
  Shape shape = to;
  shape[best->axis] = Reshape::kInferred;
  const Value reshaped = add(Reshape{shape}, {x});
  reader_.builder_.layer(reshaped).outer = best->outer;
  return reshaped;
}

Value NodeReader::transpose(Value x, std::vector<std::size_t> order) {
  if (std::ranges::is_sorted(order)) return x;
  if (const auto* first = reader_.builder_.computed_by<Transpose>(x)) {
    for (std::size_t& from : order) from = first->order.at(from);
    const Value from = reader_.builder_.layer(x).inputs[0];
    return transpose(from, std::move(order));
  }
  return add(Transpose{std::move(order)}, {x});
}

Value NodeReader::linear(Value x, double alpha, double beta) {
  if (const auto* before = reader_.builder_.computed_by<Activation>(x);
      before != nullptr && before->function == Activation::Function::linear) {
    const double first_alpha = before->alpha, first_beta = before->beta;
    const Value from = reader_.builder_.layer(x).inputs[0];
    return linear(from, alpha * first_alpha, alpha * first_beta + beta);
  }
  if (const auto* input = reader_.builder_.computed_by<ImageInput>(x)) {
    const std::size_t channels = input->mean.size();
    return normalized(x, std::vector(channels, static_cast<float>(alpha)),
                      std::vector(channels, static_cast<float>(beta)));
  }
  const bool nothing = std::fabs(alpha - 1) < 1e-7 && beta == 0;
  return nothing ? x : function(Activation::Function::linear, x, static_cast<float>(alpha), static_cast<float>(beta));
}

// (p - mean) / std times alpha plus beta is (p - (mean - beta std / alpha)) / (std / alpha).
Value NodeReader::normalized(Value images, const std::vector<float>& alpha, const std::vector<float>& beta) {
  ImageInput input = *reader_.builder_.computed_by<ImageInput>(images);
  for (std::size_t c = 0; c < input.mean.size(); ++c) {
    input.stddev[c] /= alpha[c];
    input.mean[c] -= beta[c] * input.stddev[c];
  }
  return reader_.builder_.add({"input", Operation(std::move(input)), {Graph::kImages}});
}

Value NodeReader::function(Activation::Function function, Value x, float alpha, float beta) {
  return add(Activation{function, alpha, beta}, {x});
}

Value NodeReader::gather(Value x, std::size_t axis, const std::vector<std::size_t>& indices) {
  bool neighbours = true;
  for (std::size_t i = 1; i < indices.size(); ++i) neighbours = neighbours && indices[i] == indices[i - 1] + 1;
  if (neighbours) return slice(x, axis, indices.empty() ? 0 : indices[0], indices.size());
  expect_not_batch(x, axis);
  return add(Gather{axis, indices}, {x});
}

Value NodeReader::slice(Value x, std::size_t axis, std::size_t begin, std::size_t size) {
  if (size == 0) fail("it selects nothing");
  if (begin == 0 && size == shape(x)[axis]) return x;
  expect_not_batch(x, axis);
  return add(Slice{axis, begin, size}, {x});
}

void NodeReader::expect_not_batch(Value x, std::size_t axis) const {
  const auto place = reader_.builder_.batch(x);
  if (place && place->axis == axis) fail("it mixes the images of a batch (dimension {})", axis);
}

Value NodeReader::expand(Value x, const Shape& to) {
  Shape from = shape(x);
  if (from.size() < to.size()) {
    from.insert(from.begin(), to.size() - from.size(), 1);
    x = reshape(x, from);
  }
  const Shape out = broadcast(from, to);
  if (reader_.builder_.batch(x)) {
    for (std::size_t axis = 0; axis < out.size(); ++axis)
      if (from[axis] != out[axis]) x = gather(x, axis, std::vector<std::size_t>(out[axis], 0));
    return x;
  }
  if (out == from) return x;
  // Without the batch's name, repeating to the batch's extent repeats for every image: in the first dimension, or in
  // any if the file leaves the batch open.
  const bool open = reader_.file_.input_batch() == 0;
  Shape shape = out;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] == reader_.batch_ && from[axis] == 1 && shape[axis] > 1 && (open || axis == 0)) {
      shape[axis] = Expand::kBatch;
      break;
    }
  return add(Expand{shape}, {x, Graph::kImages});
}

void NodeReader::set(Item item, std::size_t output) {
  if (output >= outputs()) return;
  const std::string& name = node_.output(static_cast<int>(output));
  if (!name.empty()) reader_.items_[name] = std::move(item);
}

void NodeReader::set_weights(HostTensor weights) {
  const auto made = std::make_shared<const HostTensor>(std::move(weights));
  reader_.weights_.insert(made);
  set(Item(made));
}

std::string NodeReader::default_name() const {
  const auto scopes = exported_scopes(node_);
  std::string name = !scopes.empty() ? scopes.back() : node_.name().substr(node_.name().rfind('/') + 1);
  if (name.empty()) name = node_.op_type();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string within = module_of(node_);
  return within.empty() ? name : within + "." + name;
}

// Exporters store equal tensors once, under the name of the first layer that has it.
std::string NodeReader::layer_name(const std::vector<Stored>& parameters) {
  std::string name;
  for (const Stored& parameter : parameters) {
    if (parameter.tensor == nullptr || !reader_.named_.insert(parameter.tensor).second || !name.empty()) continue;
    const std::string& known = reader_.trained_.of(*parameter.tensor).parameter;
    if (!known.empty()) name = layer_of(known);
  }
  if (!name.empty()) return name;
  const std::string within = module_of(node_);
  return within.empty() ? default_name() : within;
}

bool is_per_channel(const Shape& operand, const Shape& values) {
  if (values.size() < 2) return false;
  Shape expected(values.size() - 1, 1);
  expected[0] = values[1];
  Shape own = operand;
  if (own.size() == values.size() && own[0] == 1) own.erase(own.begin());
  return own == expected;
}

}  // namespace annulus
