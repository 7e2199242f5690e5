#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "collectives/world/world.h"
#include "src/job/open_device.h"

namespace annulus {

struct GenerateOptions {
  DeviceOptions device;
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::string prompt;
  std::size_t tokens = 200;  // at most
  double temperature = 1;    // the logits are divided by it; 0: always the likeliest token
  std::size_t top_k = 0;     // choose among the likeliest tokens only; 0: among all
  std::uint64_t seed = 0;
};

// Runs `annulus generate`: prints the prompt and a continuation, token by token, up to a text's end. Throws Error.
void generate(const World& world, const GenerateOptions& options);

}  // namespace annulus
