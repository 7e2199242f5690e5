#include "src/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "src/io/atomic_file.h"
#include "src/io/checked_product.h"
#include "src/io/file_io.h"
#include "src/io/json.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLengthBytes = 8, kMostHeaderBytes = 100'000'000;  // the limit in the format's own library
constexpr const char* kMetadata = "__metadata__";

template <class Stored>
float from_bytes(const std::uint8_t* bytes) {
  Stored value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<float>(value);
}

float from_bf16(const std::uint8_t* bytes) {  // a float32's upper half
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

float from_f16(const std::uint8_t* bytes) {  // a sign, 5 exponent bits, 10 mantissa bits
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float size = exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                    : std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024),
                                                 std::max(exponent, 1) - 25);
  return half >> 15 == 0 ? size : -size;
}

struct StoredType {
  std::string_view name;
  std::size_t bytes;
  float (*to_float)(const std::uint8_t* bytes);  // null if it is not a floating-point type
};
constexpr std::array<StoredType, 15> kTypes{{{"BOOL", 1, nullptr},
                                             {"U8", 1, nullptr},
                                             {"I8", 1, nullptr},
                                             {"F8_E5M2", 1, nullptr},
                                             {"F8_E4M3", 1, nullptr},
                                             {"U16", 2, nullptr},
                                             {"I16", 2, nullptr},
                                             {"F16", 2, from_f16},
                                             {"BF16", 2, from_bf16},
                                             {"U32", 4, nullptr},
                                             {"I32", 4, nullptr},
                                             {"F32", 4, from_bytes<float>},
                                             {"U64", 8, nullptr},
                                             {"I64", 8, nullptr},
                                             {"F64", 8, from_bytes<double>}}};

const StoredType* find_type(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &StoredType::name);
  return found == kTypes.end() ? nullptr : &*found;
}

// Parses JSON in which no object has a key twice; among equal keys a JSON object would keep the last.
nlohmann::json parse_header(const std::string& text, const fs::path& file) {
  std::vector<std::set<std::string>> keys;  // in the open objects
  std::optional<std::string> duplicate;
  const auto check = [&](int, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      duplicate = parsed.get<std::string>();
    return true;
  };
  nlohmann::json header;
  try {
    header = parse_json(text, check);
  } catch (const nlohmann::json::exception&) {  // its message may quote much of the text
  }
  if (!header.is_object()) fail("{}: not a safetensors file: its header is not a JSON object", file.string());
  if (duplicate) fail("{}: its header has '{}' twice", file.string(), printable(*duplicate));
  return header;
}

bool are_sizes(const nlohmann::json& json) {
  return json.is_array() && std::ranges::all_of(json, [](const auto& one) { return one.is_number_unsigned(); });
}

// Returns the tensor that a header entry describes.
StoredTensor parse_entry(const std::string& name, const nlohmann::json& json, const fs::path& file) {
  const auto complain = [&](const std::string& problem) {
    fail("{}: tensor {}: {}", file.string(), printable(name), problem);
  };
  const auto field = [&](const char* key) {
    return json.is_object() && json.contains(key) ? json[key] : nlohmann::json();
  };
  const nlohmann::json type = field("dtype"), shape = field("shape"), offsets = field("data_offsets");
  if (!type.is_string() || !are_sizes(shape) || !are_sizes(offsets) || offsets.size() != 2)
    complain("its header needs dtype, shape and two data_offsets");
  StoredTensor tensor{name, type, shape, offsets[0], offsets[1]};
  const StoredType* stored = find_type(tensor.type);
  if (stored == nullptr) complain(fmt::format("unknown type '{}'", printable(tensor.type)));
  const auto bytes = checked_product(tensor.shape, stored->bytes);
  if (tensor.begin > tensor.end || !bytes || *bytes != tensor.end - tensor.begin)
    complain(fmt::format("{} elements of type {} do not fit bytes {} to {}", to_string(tensor.shape), tensor.type,
                         tensor.begin, tensor.end));
  return tensor;
}

// Throws Error unless the tensors, in their order, fill the data exactly.
void expect_filled(const std::vector<StoredTensor>& tensors, std::uint64_t data_bytes, const fs::path& file) {
  std::uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != end)
      fail("{}: tensor {} begins at byte {} of the data, but the one before it ends at byte {}", file.string(),
           printable(tensor.name), tensor.begin, end);
    end = tensor.end;
  }
  if (end != data_bytes)
    fail("{}: {} bytes of data, but its tensors have {}; fetch the file again", file.string(), data_bytes, end);
}

std::string header_of(const std::vector<TensorToStore>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[kMetadata] = {{"format", "pt"}, {"producer", "annulus"}};
  for (const auto& [key, value] : metadata) header[kMetadata][key] = value;
  std::uint64_t end = 0;
  for (const TensorToStore& tensor : tensors) {
    const std::uint64_t begin = end;
    end += std::visit([](const auto& elements) { return elements.size_bytes(); }, tensor.elements);
    header[tensor.name] = {{"dtype", tensor.elements.index() == 0 ? "F32" : "I64"},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');  // aligns the data
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& file) : file_(file), descriptor_(open_to_read(file)) {
  const std::uint64_t size = size_of(descriptor_, file);
  if (size < kLengthBytes) fail("{}: too short for a safetensors file", file.string());
  std::uint64_t header_bytes = 0;
  read_at(descriptor_, file, 0, {reinterpret_cast<std::uint8_t*>(&header_bytes), sizeof header_bytes});
  if (header_bytes > size - kLengthBytes || header_bytes > kMostHeaderBytes)
    fail("{}: not a safetensors file, or truncated: its header should have {} bytes", file.string(), header_bytes);
  std::vector<std::uint8_t> text(header_bytes);
  read_at(descriptor_, file, kLengthBytes, text);
  data_begin_ = kLengthBytes + header_bytes;
  const nlohmann::json header = parse_header({text.begin(), text.end()}, file);
  for (const auto& [name, json] : header.items())
    if (name != kMetadata) tensors_.push_back(parse_entry(name, json, file));
  std::ranges::sort(tensors_, {}, [](const StoredTensor& tensor) { return std::pair(tensor.begin, tensor.end); });
  expect_filled(tensors_, size - data_begin_, file);
}

std::vector<float> SafetensorsFile::read(const StoredTensor& tensor) const {
  const StoredType& type = *find_type(tensor.type);
  if (type.to_float == nullptr)
    fail("{}: tensor {}: elements of type {}; weights must be F16, BF16, F32 or F64", file_.string(),
         printable(tensor.name), tensor.type);
  std::vector<std::uint8_t> bytes(tensor.end - tensor.begin);
  read_at(descriptor_, file_, data_begin_ + tensor.begin, bytes);
  std::vector<float> values(bytes.size() / type.bytes);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = type.to_float(bytes.data() + i * type.bytes);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    fail("{}: tensor {} has values that are not finite in float32", file_.string(), printable(tensor.name));
  return values;
}

std::uint64_t write_safetensors(const fs::path& file, std::vector<TensorToStore> tensors,
                                const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, {}, [](const TensorToStore& tensor) {
    return std::pair(tensor.elements.index() == 0, std::string_view(tensor.name));
  });
  const std::string header = header_of(tensors, metadata);
  const std::uint64_t header_bytes = header.size();
  AtomicFile out(file);
  std::uint64_t position = 0;
  const auto append = [&](const auto& values) {
    const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(values.data()),
                                              values.size_bytes());
    out.write_at(position, bytes);
    position += bytes.size();
  };
  append(std::span(&header_bytes, 1));
  append(std::span(header));
  for (const TensorToStore& tensor : tensors) std::visit(append, tensor.elements);
  out.commit();
  return position;
}

}  // namespace annulus
