#include "src/onnx/other_files.h"

#include <algorithm>
#include <cctype>

#include "src/io/content_kind.h"

namespace annulus {
namespace {

constexpr const char* kConvert =
    "load it in Python and call torch.onnx.export(model, (images,), 'net.onnx', dynamo=True), then use --model "
    "net.onnx";
constexpr const char* kWeights =
    "weights without a network: give the network as --model (a name, or net.onnx of torch.onnx.export), and this file "
    "as --weights";

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
  switch (content_kind(begin)) {
    case ContentKind::empty:
      return "empty (0 bytes): fetch it again";
    case ContentKind::git_lfs_pointer:
      return "a pointer of git-lfs, not the file itself: fetch it with 'git lfs pull'";
    case ContentKind::web_page:
      return "a web page: download the file itself, not the page that shows it";
    case ContentKind::zip:
      return std::string("a zip archive, as PyTorch's torch.save writes: ") + kConvert;
    case ContentKind::pickle:
      return std::string("pickled by Python, as PyTorch's torch.save did: ") + kConvert;
    case ContentKind::safetensors:
      return kWeights;
    case ContentKind::hdf5:
      return "an HDF5 file, such as a checkpoint: resume a run with --resume";
    case ContentKind::gzip:
      return "compressed with gzip: unpack it first";
    case ContentKind::json:
      return "a JSON file: give the ONNX file of the network";
    default:
      return "";
  }
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
