#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus {

struct ModelsOptions {
  std::string model;               // empty: all
  std::vector<std::size_t> image;  // height, width, channels; empty: what each model is usually trained with
  std::size_t classes = 0;         // 0: likewise
  std::filesystem::path json;
  bool overwrite = false;
};

// Prints what the zoo's models cost, or one of them layer by layer. Layers are those that are run: what fusion has
// made of the model. Throws Error where there is no model of that name, or where it does not take such images.
void list_models(const ModelsOptions& options);

}  // namespace annulus
