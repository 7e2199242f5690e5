#include "src/weights/weight_files.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/io/content_kind.h"
#include "src/io/file_io.h"
#include "src/io/json.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostIndexBytes = 100'000'000;

std::string converted_name(const fs::path& file) {
  return fs::path(file).replace_extension(".safetensors").string();
}

[[noreturn]] void fail_for_pytorch(const fs::path& file) {
  fail(
      "{}: a file of PyTorch's torch.save; convert it: python3 -c \"import torch, safetensors.torch as s; "
      "w = torch.load('{}', 'cpu', weights_only=True); w = w.get('state_dict', w.get('model', w)); "
      "s.save_file({{n: t.clone().contiguous() for n, t in w.items() if torch.is_tensor(t)}}, '{}')\"",
      file.string(), file.string(), converted_name(file));
}

[[noreturn]] void fail_for_numpy(const fs::path& file) {
  fail(
      "{}: a file of NumPy's; convert it: python3 -c \"import numpy, safetensors.numpy as s; "
      "s.save_file(dict(numpy.load('{}')), '{}')\"",
      file.string(), file.string(), converted_name(file));
}

// Throws Error if the file is recognized as another kind.
void expect_no_other_kind(const fs::path& file, const std::string& begin) {
  const std::string name = file.string();
  switch (content_kind(begin)) {
    case ContentKind::safetensors:
      return;
    case ContentKind::empty:
      fail("{}: empty (0 bytes); fetch it again", name);
    case ContentKind::git_lfs_pointer:
      fail("{}: a pointer of git-lfs, not the weights themselves; fetch them with 'git lfs pull'", name);
    case ContentKind::web_page:
      fail("{}: an HTML page, not weights; download the file itself, not the page that shows it", name);
    case ContentKind::zip:
      begin.find(".npy") != begin.npos ? fail_for_numpy(file) : fail_for_pytorch(file);
    case ContentKind::pickle:
      fail_for_pytorch(file);
    case ContentKind::npy:
      fail("{}: an array of NumPy's; give a safetensors file with names", name);
    case ContentKind::gguf:
      fail("{}: a GGUF file; give the safetensors file that it was made from", name);
    case ContentKind::gzip:
      fail("{}: compressed with gzip; unpack it first", name);
    default:
      if (file.extension() == ".onnx") fail("{}: an ONNX file; give it as --model, which has its weights", name);
  }
}

// Returns the names of the tensors in each file of an index.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& file) {
  std::vector<std::uint8_t> bytes;
  read_file(file, kMostIndexBytes, bytes);
  const nlohmann::json json = try_parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty())
    fail("{}: not an index of safetensors files: no JSON object with a weight_map", file.string());
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [name, in] : json["weight_map"].items()) {
    const std::string part = in.is_string() ? in.get<std::string>() : "";
    if (part.empty() || fs::path(part).filename() != part || part == "..")
      fail("{}: weight_map: {}: not the name of a file beside it", file.string(), printable(name));
    names[part].push_back(name);
  }
  return names;
}

// Returns "3" for model-00001-of-00003.safetensors; empty if it is not a part.
std::string parts_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  const std::size_t of = stem.rfind("-of-");
  if (of == stem.npos || of + 4 == stem.size() || stem.find_first_not_of("0123456789", of + 4) != stem.npos) return {};
  return stem.substr(std::min(stem.find_first_not_of('0', of + 4), stem.size() - 1));
}

}  // namespace

bool is_hdf5(const fs::path& file) {
  return content_kind(beginning(file)) == ContentKind::hdf5;
}

WeightFiles::WeightFiles(const fs::path& file) {
  if (content_kind(beginning(file)) == ContentKind::json) {
    const auto index = read_index(file);
    for (const auto& [part, names] : index) {
      const fs::path path = file.parent_path() / part;
      if (!fs::exists(path)) fail("{}: {} is missing beside it ({} files)", file.string(), part, index.size());
      add(path, names);
    }
    return;
  }
  const std::string parts = parts_of(file);
  if (!parts.empty() && parts != "1")
    fail("{}: one of {} files of a network; give the index beside it (model.safetensors.index.json)", file.string(),
         parts);
  add(file, {});
}

// `listed`: all tensors that the file must have; none if there is no index.
void WeightFiles::add(const fs::path& file, const std::vector<std::string>& listed) {
  expect_no_other_kind(file, beginning(file));
  files_.emplace_back(file);
  const std::vector<StoredTensor>& tensors = files_.back().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shapes_[tensors[i].name] = tensors[i].shape;
    places_[tensors[i].name] = {files_.size() - 1, i};
  }
  for (const std::string& name : listed)
    if (std::ranges::find(tensors, name, &StoredTensor::name) == tensors.end())
      fail("{}: tensor {} is missing, which the index lists", file.string(), printable(name));
}

std::vector<float> WeightFiles::read(const std::string& name) const {
  const auto [file, tensor] = places_.at(name);
  return files_[file].read(files_[file].tensors()[tensor]);
}

}  // namespace annulus
