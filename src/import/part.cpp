#include "src/import/part.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/json.h"

namespace annulus {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

std::filesystem::path index_file(const std::filesystem::path& part) {
  return part.string() + ".json";
}

nlohmann::json to_json(const ImageSize& size) {
  return {size.height, size.width};
}

ImageSize size_from(const nlohmann::json& json) {
  return {json.at(0), json.at(1)};
}

nlohmann::json to_json(const PartIndex& index) {
  nlohmann::json skipped = nlohmann::json::array();
  for (const SkippedSample& sample : index.skipped) skipped.push_back({sample.name, sample.reason});
  const PixelSums& pixels = index.statistics.pixels;
  return {{"labels", index.labels},
          {"sizes", index.sizes},
          {"skipped", skipped},
          {"pixels", pixels.count},
          {"sums", pixels.sums},
          {"squares", pixels.squares},
          {"smallest", to_json(index.statistics.sizes.smallest)},
          {"largest", to_json(index.statistics.sizes.largest)},
          {"hash", index.hash},
          {"text bytes", index.text_bytes},
          {"invalid documents", index.invalid_documents},
          {"invalid bytes", index.invalid_bytes}};
}

PartIndex index_from(const nlohmann::json& json) {
  PartIndex index{json.at("labels"),
                  json.at("sizes"),
                  {},
                  {},
                  json.at("hash"),
                  json.at("text bytes"),
                  json.at("invalid documents"),
                  json.at("invalid bytes")};
  for (const auto& sample : json.at("skipped")) index.skipped.push_back({sample.at(0), sample.at(1)});
  index.statistics.pixels = {json.at("pixels"), json.at("sums"), json.at("squares")};
  index.statistics.sizes = {size_from(json.at("smallest")), size_from(json.at("largest"))};
  return index;
}

}  // namespace

std::uint64_t PartIndex::bytes() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::filesystem::path part_data_file(const std::filesystem::path& part) {
  return part.string() + ".data";
}

bool part_exists(const std::filesystem::path& part) {
  return std::filesystem::exists(index_file(part));
}

PartIndex read_part_index(const std::filesystem::path& part) try {
  std::ifstream stream(index_file(part));
  PartIndex index = index_from(parse_json(stream));
  if (index.labels.size() != index.sizes.size()) fail("{}: damaged", index_file(part).string());
  return index;
} catch (const nlohmann::json::exception& error) {
  fail("{}: missing or damaged; delete the folder it is in and import again", index_file(part).string());
}

PartWriter::PartWriter(const std::filesystem::path& part) : part_(part), data_(part_data_file(part)) {}

void PartWriter::add(std::int64_t label, std::span<const std::uint8_t> image) {
  index_.labels.push_back(label);
  index_.sizes.push_back(image.size());
  buffer_.insert(buffer_.end(), image.begin(), image.end());
  if (buffer_.size() >= kBufferBytes) write_buffer();
}

void PartWriter::add_tokens(std::span<const std::uint8_t> tokens) {
  document_ += tokens.size();
  buffer_.insert(buffer_.end(), tokens.begin(), tokens.end());
  if (buffer_.size() >= kBufferBytes) write_buffer();
}

void PartWriter::end_document(std::uint64_t text_bytes, std::uint64_t invalid_bytes) {
  index_.labels.push_back(0);
  index_.sizes.push_back(std::exchange(document_, 0));
  index_.text_bytes.push_back(text_bytes);
  index_.invalid_documents += invalid_bytes > 0;
  index_.invalid_bytes += invalid_bytes;
}

void PartWriter::skip(std::string name, std::string reason) {
  index_.skipped.push_back({std::move(name), std::move(reason)});
}

void PartWriter::finish(const ImageStatistics& statistics) {
  write_buffer();
  data_.commit();
  index_.statistics = statistics;
  index_.hash = hash_.text();
  // A file's name may be any bytes, but JSON requires UTF-8.
  const std::string text = to_json(index_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  write_atomically(index_file(part_), std::as_bytes(std::span(text)));
}

void PartWriter::write_buffer() {
  data_.write_at(written_, buffer_);
  hash_.add(std::span<const std::uint8_t>(buffer_));
  written_ += buffer_.size();
  buffer_.clear();
}

}  // namespace annulus
