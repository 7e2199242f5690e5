#include "src/apply/checkpoint_tools.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/printable.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

using Values = std::span<const float>;

double norm(Values values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

TensorDifference difference(const std::string& name, Values a, Values b) {
  TensorDifference found{name};
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    found.largest = std::isnan(distance) ? distance : std::max(found.largest, distance);
    squares += distance * distance;
  }
  found.relative = std::sqrt(squares) / norm(a);
  return found;
}

void compare(const NamedTensor& a, const NamedTensor& b, std::vector<TensorDifference>& found) {
  if (a.shape != b.shape) {
    found.push_back(
        {.name = a.name, .remark = fmt::format("shapes {} and {}", to_string(a.shape), to_string(b.shape))});
    return;
  }
  const auto of_a = arrays_of(a), of_b = arrays_of(b);
  const auto in = [](const auto& all, std::string_view group) {
    return std::ranges::find(all, group, &CheckpointArray::group);
  };
  const auto name_of = [](const CheckpointArray& array) { return fmt::format("{}/{}", array.group, array.name); };
  for (const CheckpointArray& array : of_a) {
    const auto other = in(of_b, array.group);
    if (other == of_b.end())
      found.push_back({.name = name_of(array), .remark = "only in the first"});
    else if (std::memcmp(array.values.data(), other->values.data(), array.values.size_bytes()) != 0)
      found.push_back(difference(name_of(array), array.values, other->values));
  }
  for (const CheckpointArray& array : of_b)
    if (in(of_a, array.group) == of_a.end()) found.push_back({.name = name_of(array), .remark = "only in the second"});
}

const NamedTensor* find(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = std::ranges::find(checkpoint.parameters, name, &NamedTensor::name);
  return found == checkpoint.parameters.end() ? nullptr : &*found;
}

// Throws Error if the checkpoints belong to different models.
void expect_same_model(const LoadedCheckpoint& first, const LoadedCheckpoint& other) {
  const auto differ = [&](const std::string& what) {
    fail("{} and {} cannot be averaged: {}", first.file.string(), other.file.string(), what);
  };
  const Checkpoint &a = first.checkpoint, &b = other.checkpoint;
  if (a.model != b.model || a.onnx != b.onnx) differ(fmt::format("they are of models {} and {}", a.model, b.model));
  if (a.data.labels != b.data.labels)
    differ(fmt::format("their labels are {} and {}", description(a.data.labels), description(b.data.labels)));
  if (a.loss != b.loss) differ(fmt::format("they were made with --loss {} and {}", a.loss, b.loss));
  for (const auto& [one, another] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const NamedTensor& tensor : one->parameters) {
      const NamedTensor* same = find(*another, tensor.name);
      if (same == nullptr) differ(fmt::format("only one has a parameter {}", tensor.name));
      if (same->shape != tensor.shape) differ(fmt::format("{} has two shapes", tensor.name));
    }
}

// Averages `values_of` over the checkpoints, in double precision.
template <class ValuesOf>
std::vector<float> mean(const std::vector<const NamedTensor*>& tensors, const ValuesOf& values_of) {
  std::vector<double> sums(values_of(*tensors.front()).size());
  for (const NamedTensor* tensor : tensors)
    std::ranges::transform(sums, values_of(*tensor), sums.begin(), std::plus<double>{});
  std::vector<float> means;
  for (const double sum : sums) means.push_back(static_cast<float>(sum / static_cast<double>(tensors.size())));
  return means;
}

std::vector<std::string> header(const Checkpoint& c) {
  std::vector<std::string> lines{
      fmt::format("model       {}", c.model),
      fmt::format("step        {}: epoch {}, image {}", c.run.step, c.run.cursor.epoch + 1, c.run.cursor.position)};
  if (c.run.score) lines.push_back(fmt::format("evaluated   {}: {}", headline(*c.run.score), details(*c.run.score)));
  if (c.image.height > 0) lines.push_back(fmt::format("images      {}x{}", c.image.height, c.image.width));
  lines.push_back(fmt::format("optimizer   {}", c.optimizer.empty() ? "none: a mean of checkpoints" : c.optimizer));
  if (!c.frozen.empty())
    lines.push_back(fmt::format("frozen      {} of {} parameters", c.frozen.size(), c.parameters.size()));
  if (!c.summing.empty()) lines.push_back(fmt::format("all-reduce  {}", c.summing));
  return lines;
}

std::size_t count_values(const Checkpoint& checkpoint) {
  std::size_t count = 0;
  for (const NamedTensor& tensor : checkpoint.parameters) count += tensor.values.size();
  return count;
}

nlohmann::json describe(const LoadedCheckpoint& stored) {
  const Checkpoint& c = stored.checkpoint;
  nlohmann::json json{{"file", stored.file.string()},
                      {"model", c.model},
                      {"optimizer", c.optimizer},
                      {"step", c.run.step},
                      {"epoch", c.run.cursor.epoch},
                      {"position", c.run.cursor.position},
                      {"seed", c.seed},
                      {"configuration", c.configuration},
                      {"frozen", c.frozen}};
  if (c.run.score) json["score"] = to_json(*c.run.score);
  nlohmann::json& tensors = json["tensors"] = nlohmann::json::array();
  for (const NamedTensor& tensor : c.parameters) {
    nlohmann::json norms;
    for (const CheckpointArray& array : arrays_of(tensor)) norms[std::string(array.group)] = norm(array.values);
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"norms", norms}});
  }
  return json;
}

LoadedCheckpoint find_and_print(const std::filesystem::path& place) {
  const StoredCheckpoint stored = find_checkpoint(place);
  for (const std::string& line : stored.damaged) fmt::print("{}\n", printable(line));
  return {stored.file.path(), read_checkpoint(stored.file)};
}

}  // namespace

std::vector<TensorDifference> differences(const Checkpoint& a, const Checkpoint& b) {
  std::vector<TensorDifference> found;
  for (const NamedTensor& tensor : a.parameters) {
    if (const NamedTensor* other = find(b, tensor.name))
      compare(tensor, *other, found);
    else
      found.push_back({.name = tensor.name, .remark = "only in the first"});
  }
  for (const NamedTensor& tensor : b.parameters)
    if (find(a, tensor.name) == nullptr) found.push_back({.name = tensor.name, .remark = "only in the second"});
  return found;
}

Checkpoint average(const std::vector<LoadedCheckpoint>& checkpoints) {
  const Checkpoint& first = checkpoints.front().checkpoint;
  std::vector<std::string> names;
  bool averages = true;
  Checkpoint result;
  for (const LoadedCheckpoint& stored : checkpoints) {
    expect_same_model(checkpoints.front(), stored);
    names.push_back(stored.file.string());
    averages = averages && stored.checkpoint.averages();
    result.run.step = std::max(result.run.step, stored.checkpoint.run.step);
  }
  result.model = first.model;
  result.onnx = first.onnx;
  result.configuration =
      fmt::format("# the mean of {}; the first one's:\n{}", fmt::join(names, ", "), first.configuration);
  result.seed = first.seed;
  result.image = first.image;
  result.data = first.data;
  result.loss = first.loss;
  for (const NamedTensor& tensor : first.parameters) {
    std::vector<const NamedTensor*> same;
    for (const LoadedCheckpoint& stored : checkpoints) same.push_back(find(stored.checkpoint, tensor.name));
    NamedTensor meaned{tensor.name,
                       tensor.shape,
                       mean(
                           same, [](const NamedTensor& t) -> auto& { return t.values; }),
                       {}};
    if (averages)
      meaned.average = mean(
          same, [](const NamedTensor& t) -> auto& { return t.average; });
    result.parameters.push_back(std::move(meaned));
  }
  return result;
}

void show_checkpoint(const std::filesystem::path& place, const std::filesystem::path& json) {
  const LoadedCheckpoint stored = find_and_print(place);
  const Checkpoint& checkpoint = stored.checkpoint;
  fmt::print("{}\n", printable(stored.file.string()));
  for (const std::string& line : header(checkpoint)) fmt::print("  {}\n", printable(line));
  fmt::print("  parameters  {} in {} tensors; their norms:\n", count_values(checkpoint), checkpoint.parameters.size());
  for (const NamedTensor& tensor : checkpoint.parameters) {
    fmt::print("    {:<40} {:>16}", printable(tensor.name), to_string(tensor.shape));
    for (const auto& [group, name, shape, values] : arrays_of(tensor))
      fmt::print("  {}{:.6g}", group == kParameters ? "" : fmt::format("{} ", group), norm(values));
    fmt::print("\n");
  }
  if (!json.empty()) write_json(json, FileKind::checkpoint_description, describe(stored));
}

bool compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b) {
  const LoadedCheckpoint first = find_and_print(a), second = find_and_print(b);
  const auto found = differences(first.checkpoint, second.checkpoint);
  for (const TensorDifference& one : found)
    fmt::print(
        "{:<48} {}\n", printable(one.name),
        one.remark.empty() ? fmt::format("largest {:.6g}, relative {:.6g}", one.largest, one.relative) : one.remark);
  const auto name = [](const LoadedCheckpoint& stored) {
    return fmt::format("{} (step {})", printable(stored.file.string()), stored.checkpoint.run.step);
  };
  fmt::print("{} and {}: {}\n", name(first), name(second),
             found.empty() ? "bit-identical" : fmt::format("{} tensors differ", found.size()));
  return !found.empty();
}

void average_checkpoints(const std::filesystem::path& file, const std::vector<std::filesystem::path>& places,
                         bool overwrite) {
  std::vector<LoadedCheckpoint> checkpoints;
  for (const std::filesystem::path& place : places) checkpoints.push_back(find_and_print(place));
  std::vector<std::filesystem::path> inputs;
  for (const LoadedCheckpoint& stored : checkpoints) inputs.push_back(stored.file);
  expect_replaceable({file, FileKind::average}, inputs, overwrite);
  write_checkpoint(file, average(checkpoints));
  fmt::print("{}: the mean of {} checkpoints of {}\n", printable(file.string()), places.size(),
             printable(checkpoints.front().checkpoint.model));
}

}  // namespace annulus
