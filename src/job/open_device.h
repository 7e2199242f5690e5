#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "collectives/world/world.h"
#include "kernels/base/jpeg_decoder.h"
#include "kernels/device.h"

namespace annulus {

struct DeviceOptions {
  std::string device = "auto";
  std::string precision = "auto";        // bf16 on a GPU, fp32 on a CPU
  int threads = 0;                       // 0: see choose_threads()
  std::string instruction_set = "auto";  // of CPUs; see agree_on_instruction_set()
  std::filesystem::path tuning;          // file with measured convolution plans; empty: none
  std::string deterministic = "on";      // off: see Tuning
};

// Makes the rank's GPU current before MPI_Init, as far as the rank's place on the node is known, because MPI libraries
// that support GPU memory use the current GPU. `device`: DeviceOptions::device.
void choose_gpu(const std::string& device);

// Opens the device that this rank computes on. "auto" is a GPU if every rank has a GPU. A node's GPUs are assigned by
// local rank; CPUs agree on an instruction set. Collective. Throws Error if there is no such device.
std::unique_ptr<Device> open_device(const World& world, const DeviceOptions& options);

// Returns the number of threads that decode images on this rank; a processor decodes a few hundred images a second.
// Beside a GPU, all processors of the rank except one; if a node's ranks share processors, all but one of an even
// share. On a CPU a quarter of them, because computation shares the processors with decoding.
std::size_t decoding_threads(const World& world, const Device& device);

// Returns a factory of JPEG decoders on `device`'s GPU, for this rank's threads; empty if `device` is a CPU.
MakeJpegDecoder gpu_decoder(const World& world, const Device& device, std::size_t channels);

// Returns, on rank 0, a warning for the user if ranks share a GPU, or if GPUs are unused because not every rank has a
// GPU; else empty. Collective.
std::string device_warning(const World& world, const Device& device);

}  // namespace annulus
