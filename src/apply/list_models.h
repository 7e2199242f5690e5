#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus {

struct ModelsOptions {
  std::string model;               // empty: all
  std::vector<std::size_t> image;  // height, width, channels; empty, or 0 channels: each model's default
  std::size_t length = 0;          // tokens in a window; 0: each model's default
  std::size_t classes = 0;         // 0: each model's default
  std::filesystem::path check;     // an ONNX file
  std::string pixels = "auto";     // the pixels that the network reads, see parse_pixels()
  std::filesystem::path json;
  bool overwrite = false;
};

// Prints the costs of the zoo's models, or, layer by layer, of a single model or an ONNX file. Layers are shown as they
// run, after fusion. Throws Error if there is no model with that name, or if it does not accept such images.
void list_models(const ModelsOptions& options);

// Prints whether the network in options.check can be trained, and every node that cannot be read. Returns true if it
// can. Throws Error if it is not an ONNX file for image classification.
bool check_network(const ModelsOptions& options);

}  // namespace annulus
