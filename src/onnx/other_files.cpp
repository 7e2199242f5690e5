#include "src/onnx/other_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

namespace annulus {
namespace {

using namespace std::string_view_literals;

constexpr const char* kConvert =
    "load it in Python and call torch.onnx.export(model, (images,), 'net.onnx', dynamo=True), then use --model "
    "net.onnx";
constexpr const char* kWeights =
    "weights without a network: give the network as --model (a name, or net.onnx of torch.onnx.export), and this file "
    "as --weights";

bool begins_like(std::string_view text, std::string_view lower) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

bool is_pickle(std::string_view begin) {
  return begin.size() > 1 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
}

// The length of the header, below 2^32, and the header.
bool is_safetensors(std::string_view begin) {
  return begin.size() > 8 && begin.substr(4, 4) == "\0\0\0\0"sv && begin[8] == '{';
}

std::string beginning(const std::filesystem::path& file) {
  std::string begin(512, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(stream.gcount()));
  return begin;
}

std::string by_extension(const std::string& extension) {
  const auto is = [&](std::initializer_list<const char*> all) {
    return std::ranges::any_of(all, [&](const char* one) { return extension == one; });
  };
  if (is({".pt", ".pth", ".pt2", ".bin", ".ckpt", ".pkl"})) return std::string("a file of PyTorch's: ") + kConvert;
  if (is({".safetensors"})) return kWeights;
  if (is({".keras", ".h5", ".hdf5", ".pb", ".tflite"}))
    return "a file of TensorFlow or a checkpoint: convert a network with tf2onnx and use --model net.onnx";
  if (is({".engine", ".mlmodel", ".mlpackage", ".ort", ".gguf", ".json"}))
    return "a file that has no network to train: export it from PyTorch with torch.onnx.export";
  return "";
}

}  // namespace

std::string other_content(std::string_view begin) {
  if (begin.empty()) return "empty (0 bytes): fetch it again";
  if (begin.starts_with("version https://git-lfs"))
    return "a pointer of git-lfs, not the file itself: fetch it with 'git lfs pull'";
  if (begins_like(begin, "<!doctype") || begins_like(begin, "<html"))
    return "a web page: download the file itself, not the page that shows it";
  if (begin.starts_with("PK\3\4")) return std::string("a zip archive, as PyTorch's torch.save writes: ") + kConvert;
  if (is_pickle(begin)) return std::string("pickled by Python, as PyTorch's torch.save did: ") + kConvert;
  if (is_safetensors(begin)) return kWeights;
  if (begin.starts_with("\x89HDF\r\n")) return "an HDF5 file, such as a checkpoint: resume a run with --resume";
  if (begin.starts_with("\x1f\x8b")) return "compressed with gzip: unpack it first";
  if (begins_like(begin, "{")) return "a JSON file: give the ONNX file of the network";
  return "";
}

std::string other_network(const std::filesystem::path& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return "a folder: give a model's name or an ONNX file";
  std::string extension = model.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::filesystem::is_regular_file(model, error)) {
    const std::string content = other_content(beginning(model));
    if (!content.empty()) return content;
    return extension.empty() ? "a file: networks are read from files with the extension .onnx"
                             : by_extension(extension);
  }
  return by_extension(extension);
}

}  // namespace annulus
