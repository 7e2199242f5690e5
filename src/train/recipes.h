#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace annulus {

// A preset: names and values of options of `annulus train`.
struct Recipe {
  using Setting = std::pair<std::string_view, std::string_view>;  // {"lr", "0.1"}

  std::string_view name, description;
  std::string_view source;  // the publication
  std::vector<Setting> settings;
};

// All recipes. To add one, add an entry in recipes.cpp.
const std::vector<Recipe>& recipes();

// Throws Error listing the known names if there is no recipe of this name.
const Recipe& find_recipe(std::string_view name);

}  // namespace annulus
