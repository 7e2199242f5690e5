#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "src/data/image.h"
#include "src/data/sampler.h"

namespace annulus {

// A parameter as every device and every number of ranks understands it: row-major float32.
struct NamedTensor {
  std::string name;  // "stage1.block1.convolution1.weight"
  Shape shape;
  std::vector<float> values;
  // What the optimizer remembers of it: momentum, and some the second moment; nothing of what it does not update.
  std::vector<std::vector<float>> states;
  std::vector<float> average{};  // of the values over the steps; empty where the run keeps none
};

// All that a run needs to go on where it was. Knows nothing of ranks or devices.
struct Checkpoint {
  std::string model;          // name in the zoo
  std::string optimizer;      // that the states are of; empty in old files
  std::string configuration;  // the run's configuration as TOML, for the reader
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  // steps done
  Cursor cursor;           // where the data goes on
  std::string order;       // of the samples, as order_of() says it; empty in old files
  ImageSize image;         // that the network gets; {} in old files
  std::string summing;     // how the gradients were summed, which their last bits depend on; empty in old files
  BucketOptions buckets;   // likewise
  std::uint64_t tuned_for_ranks = 0;  // the buckets, where --bucket auto chose them; 0: it did not
  std::optional<LossScaling::State> loss_scaling;
  std::vector<NamedTensor> parameters;

  bool averages() const { return !parameters.empty() && !parameters.front().average.empty(); }
};

// An HDF5 file:
//   attributes of the root group: format ("annulus checkpoint"), version (1), model, optimizer, configuration, seed,
//                                 step, epoch, position, order, image_height, image_width, summing,
//                                 bucket_bytes, deferred_percent, tuned_for_ranks
//   /parameters/<name>            float32, row-major
//   /velocity/<name>              the same shape, for the parameters that the optimizer updates
//   /second_moment/<name>         likewise, where the optimizer has it
//   /average/<name>               likewise, for all parameters, where the run keeps a moving average of them
//   The step counts the optimizer's updates as well. loss_scale and good_steps are there after training in fp16.
//
// Written under another name in the same folder, flushed to the disk and renamed: at every instant `file` is either
// the old checkpoint or the new one, whole. Throws Error (a full disk, no permission) with the old one untouched.
void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint);

// Throws Error naming the file and what is wrong: missing, truncated, not a checkpoint, a version from the future.
Checkpoint read_checkpoint(const std::filesystem::path& file);

}  // namespace annulus
