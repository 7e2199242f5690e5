#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

struct DeviceOptions {
  std::string device = "auto";
  std::string precision = "auto";  // bf16 on a GPU, fp32 on a CPU
  int threads = 0;                 // 0: see choose_threads()
  std::filesystem::path tuning;    // file of measured convolution plans; empty: none
};

// The device that this rank computes on: with "auto" a GPU, if every rank has one; of a node's GPUs the one that its
// local rank falls on. Collective. Throws Error where there is none such.
std::unique_ptr<Device> open_device(const World& world, const DeviceOptions& options);

// How many threads of this rank decode images, which takes a processor for each few hundred a second: all that it has
// but one beside a GPU; a quarter where they compute as well, as computing goes without the time that decoding takes.
std::size_t decoding_threads(const Device& device);

// On rank 0, what a user should know of who computes on what: that ranks share a GPU, or leave GPUs unused because not
// every rank has one. Empty where there is nothing to say. Collective.
std::string device_warning(const World& world, const Device& device);

}  // namespace annulus
