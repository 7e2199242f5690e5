#pragma once

#include <optional>
#include <string>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/data/samples.h"

namespace annulus {

// The choice of the decoder of JPEG images, the same on all ranks.
struct DecoderChoice {
  MakeJpegDecoder make{};  // see InputPlan; empty: libjpeg
  std::string report{};    // one line for the user: why; empty if there was no choice
};

// Chooses by `option` (--decode): "cpu", "gpu", or "auto". With "auto", the choice is the earlier one if there is one
// (`earlier`: whether the GPU decoded), because pixels differ by rounding. Otherwise batches of `trial` are read with
// both for about a second, and the GPU is chosen if its images equal libjpeg's, up to rounding, and preparing
// them takes the threads of all ranks less time, not counting reading from storage. Collective. Throws Error if a GPU
// is requested that cannot decode, or a sample cannot be read.
DecoderChoice choose_decoder(const World& world, const Device& device, const Samples& data, const InputPlan& plan,
                             const BatchRequest& trial, const std::string& option, std::optional<bool> earlier = {});

// Chooses the plan's decoder in this way, and prints the report on rank 0.
void set_decoder(const World& world, const Device& device, const Samples& data, InputPlan& plan,
                 const BatchRequest& trial, const std::string& option, std::optional<bool> earlier = {});

}  // namespace annulus
