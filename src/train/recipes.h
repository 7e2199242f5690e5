#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace annulus {

// Settings that belong together: options of `annulus train` by their names, as they would be given.
struct Recipe {
  using Setting = std::pair<std::string_view, std::string_view>;  // {"lr", "0.1"}

  std::string_view name, description;
  std::string_view source;  // who says so
  std::vector<Setting> settings;
};

// Every recipe that there is by name. To add one: an entry in recipes.cpp.
const std::vector<Recipe>& recipes();

// Throws Error listing the names where there is none of this name.
const Recipe& find_recipe(std::string_view name);

}  // namespace annulus
