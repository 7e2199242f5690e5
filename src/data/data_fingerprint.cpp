#include "src/data/data_fingerprint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

constexpr std::size_t kImagesCompared = 256;
constexpr std::size_t kLabelsCompared = 65536;
constexpr std::size_t kShort = 60;  // characters; the longest value printed in an error message

// Hashes samples spread evenly over the data set. Hashes bad samples as "bad": code that uses them reports the errors.
template <class Add>
std::string hash_samples(const Samples& dataset, std::size_t most, const Add& add) {
  Hash hash;
  const std::size_t size = dataset.info().size;
  const std::size_t count = std::min(size, most);
  for (std::size_t i = 0; i < count; ++i) {
    try {
      add(hash, i * size / count);
    } catch (const Error&) {
      hash.add(std::span(std::string_view("bad")));
    }
  }
  return hash.text();
}

std::string hash_labels(const Samples& dataset) {
  std::vector<float> targets(dataset.info().targets());
  return hash_samples(dataset, kLabelsCompared, [&](Hash& hash, std::size_t sample) {
    const std::int32_t label = dataset.label(sample);
    dataset.read_targets(sample, targets);
    hash.add(std::span(&label, 1));
    hash.add(std::span<const float>(targets));
  });
}

std::string hash_images(const Samples& dataset) {
  std::vector<std::uint8_t> image(dataset.info().image_bytes());
  return hash_samples(dataset, kImagesCompared, [&](Hash& hash, std::size_t sample) {
    dataset.info().encoded() ? dataset.read_encoded(sample, image) : dataset.read_image(sample, image);
    hash.add(std::span<const std::uint8_t>(image));
  });
}

}  // namespace

std::vector<DataField> data_fields(const DatasetInfo& info, std::span<const DataField> samples) {
  if (info.is_text()) {
    Hash hash;
    hash.add(std::span(std::as_const(info.tokenizer)));
    std::vector<DataField> fields{{"the kind of labels", std::string(description(info.labels))},
                                  {"the vocabulary", std::to_string(info.vocabulary)},
                                  {"the mask token", std::to_string(info.mask_token)},
                                  {"the classes", fmt::format("{}", fmt::join(info.classes, ", "))},
                                  {"a hash of the tokenizer", hash.text()}};
    fields.insert(fields.end(), samples.begin(), samples.end());
    return fields;
  }
  const std::size_t channels = info.mean.size();
  std::vector<DataField> fields{
      {"the size of the images",
       info.encoded() ? "encoded" : fmt::format("{}x{}x{}", info.height, info.width, channels)},
      {"the kind of labels", std::string(description(info.labels))},
      {"the classes", fmt::format("{}", fmt::join(info.classes, ", "))}};
  fields.insert(fields.end(), samples.begin(), samples.end());
  fields.push_back({"the pixels' mean", fmt::format("{}", fmt::join(info.mean, ", "))});
  fields.push_back({"the pixels' std", fmt::format("{}", fmt::join(info.stddev, ", "))});
  return fields;
}

std::vector<DataField> sample_fields(const std::string& split, const Samples& dataset) {
  if (dataset.info().predicts_tokens())
    return {{"the number of " + split + " tokens", std::to_string(dataset.info().tokens)},
            {"a hash of the " + split + " text", hash_images(dataset)}};
  const std::string samples = split + (dataset.info().is_text() ? " texts" : " images");
  return {{"the number of " + samples, std::to_string(dataset.info().size)},
          {"a hash of the " + split + " labels", hash_labels(dataset)},
          {"a hash of the " + samples, hash_images(dataset)}};
}

std::optional<std::string> first_difference(std::span<const DataField> before, std::span<const DataField> now) {
  for (const DataField& field : before) {
    const auto other = std::ranges::find(now, field.name, &DataField::name);
    if (other == now.end() || *other == field) continue;
    if (std::max(field.value.size(), other->value.size()) > kShort) return field.name;
    return fmt::format("{}: {} before, {} now", field.name, field.value, other->value);
  }
  return std::nullopt;
}

}  // namespace annulus
