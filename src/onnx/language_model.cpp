#include "src/onnx/language_model.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"

namespace annulus {
namespace {

// Whether a value adds constants or parameters to embedded tokens.
bool embeds_tokens(const GraphBuilder& builder, Value value) {
  while (Graph::has_node(value)) {
    if (builder.computed_by<TokenEmbedding>(value) != nullptr) return true;
    const auto* arithmetic = builder.computed_by<Arithmetic>(value);
    const bool sums = builder.computed_by<Add>(value) != nullptr ||
                      (arithmetic != nullptr && arithmetic->op == Arithmetic::Operator::sum);
    if (!sums) return false;
    value = builder.layer(value).inputs[0];
  }
  return false;
}

}  // namespace

// Only PyTorch's newer exporter writes the call, embedding(weight, tokens, padding_idx, scale_grad_by_freq).
void expect_plain_gradient(const NodeReader& n) {
  const std::string call = n.written_call();
  const std::string_view begin = "embedding.default](args = (";
  const std::size_t arguments = call.find(begin);
  if (arguments == std::string::npos) return;
  const std::string all =
      call.substr(arguments + begin.size(), call.find(')', arguments + begin.size()) - arguments - begin.size());
  if (std::ranges::count(all, ',') < 2) return;
  const std::string padding = all.substr(all.find(',', all.find(',') + 1) + 2);
  const std::size_t next = padding.find(',');
  if (next != std::string::npos && padding.substr(next).starts_with(", True"))
    fail("its scale_grad_by_freq is not supported");
  if (!padding.starts_with("-"))
    fail(
        "its padding_idx={} leaves that token's row untrained, which is not supported: export it with padding_idx=None",
        padding.substr(0, next));
}

namespace {

// PyTorch begins with zeros in the row of padding_idx, which only its newer exporter writes.
void expect_no_zero_row(const NodeReader& n, const Shape& table) {
  const auto* file = n.as<FileTensor>(0);
  if (file == nullptr || file->transposed || n.file_marks_parameters() || OnnxFile::stripped(*file->tensor)) return;
  const HostTensor values = read_tensor(*file->tensor);
  std::vector<std::size_t> zeros;
  for (std::size_t row = 0; row < table[0]; ++row) {
    const auto begin = values.reals.begin() + static_cast<std::ptrdiff_t>(row * table[1]);
    if (std::all_of(begin, begin + static_cast<std::ptrdiff_t>(table[1]), [](double value) { return value == 0; }))
      zeros.push_back(row);
  }
  if (zeros.size() == 1 && table[0] > 1)
    fail(
        "row {} of its table is zeros, as padding_idx={} leaves it, which this exporter does not write: export it with "
        "padding_idx=None and dynamo=True",
        zeros[0], zeros[0]);
}

}  // namespace

Value token_embedding(NodeReader& n) {
  const Shape table = n.input_shape(0);
  if (table.size() != 2 || checked_axis(n.attributes.whole("axis", 0), 2) != 0)
    fail("its table of {} is not {{vocabulary, width}}, indexed by tokens", to_string(table));
  expect_no_zero_row(n, table);
  return n.add(TokenEmbedding{table[0], table[1]}, {Graph::kWindow}, {n.expect_stored(0, "table is")});
}

std::optional<Value> position_embedding(NodeReader& n, Value x, Value rows) {
  const GraphBuilder& builder = n.builder();
  if (!embeds_tokens(builder, x) || builder.batch(rows)) return std::nullopt;
  const Shape shape = n.shape(x);
  Shape expected(shape.begin() + 1, shape.end());
  if (n.shape(rows).size() == 3) expected.insert(expected.begin(), 1);
  if (n.shape(rows) != expected) return std::nullopt;
  Value table = rows;
  if (builder.computed_by<Reshape>(table) != nullptr) table = builder.layer(table).inputs[0];
  if (const auto* slice = builder.computed_by<Slice>(table)) {
    if (slice->axis != 0 || slice->begin != 0) return std::nullopt;
    table = builder.layer(table).inputs[0];
  }
  if (!n.file_marks_parameters() && builder.computed_by<Constant>(table) != nullptr)
    fail("it adds constants to embedded tokens, which may come from trained positions: export it with dynamo=True");
  const auto* learned = builder.computed_by<Learned>(table);
  if (learned == nullptr || learned->shape.size() != 2 || learned->shape[1] != shape.back()) return std::nullopt;
  return n.add(PositionEmbedding{learned->shape[0]}, {x}, {builder.layer(table).stored[0]});
}

std::string attends_to_later_tokens(const GraphBuilder& builder) {
  for (const GraphBuilder::Layer& layer : builder.layers())
    if (const auto* operation = std::get_if<Operation>(&layer.operation))
      if (const auto* attention = std::get_if<Attention>(operation); attention != nullptr && !attention->causal)
        return layer.name;
  return "";
}

Value language_model_head(GraphBuilder& builder, Value logits, Prediction prediction) {
  const Shape shape = builder.shape(logits, 1);
  const std::size_t length = window_form(builder.shape(Graph::kWindow, 1)).length;
  if (shape.size() != 3 || shape[1] != length || builder.batch(logits) != BatchPlace{0, 1})
    fail(
        "it is {} for one window, but must be logits {{batch, length, vocabulary}}: a language model's, without a loss",
        to_string(shape));
  const std::string later = attends_to_later_tokens(builder);
  if (prediction == Prediction::next && !later.empty())
    fail("the attention of {} reads later tokens: train a masked language model with --loss masked", later);
  const auto* linear = builder.computed_by<Linear>(logits);
  if (linear == nullptr || linear->transposed_in_file)
    fail("its logits must come from a linear layer, such as nn.Linear(width, vocabulary)");
  GraphBuilder::Layer head = builder.layer(logits);
  head.operation = Operation(LanguageModelHead{.vocabulary = linear->units, .bias = linear->bias});
  head.inputs.push_back(Graph::kWindow);
  head.stored.insert(head.stored.begin(), Stored{});  // the metrics
  head.outer = 1;
  return builder.add(std::move(head));
}

std::size_t vocabulary(const GraphBuilder& builder) {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const GraphBuilder::Layer& layer : builder.layers()) {
    const auto* operation = std::get_if<Operation>(&layer.operation);
    if (operation == nullptr) continue;
    if (const auto* embedding = std::get_if<TokenEmbedding>(operation)) least = std::min(least, embedding->vocabulary);
    if (const auto* head = std::get_if<LanguageModelHead>(operation)) least = std::min(least, head->vocabulary);
  }
  return least;
}

}  // namespace annulus
