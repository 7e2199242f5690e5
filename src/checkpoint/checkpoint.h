#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "kernels/base/error.h"
#include "kernels/base/tensor.h"
#include "kernels/device.h"
#include "src/data/data_fingerprint.h"
#include "src/data/image.h"
#include "src/data/sampler.h"
#include "src/data/samples.h"

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

// Of the optimizer's states, as a checkpoint calls them.
constexpr std::array<std::string_view, 2> kStateNames = {"velocity", "second_moment"};

// What the evaluation after a checkpoint's step found.
struct Score {
  std::uint64_t correct, count;  // images

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(count); }
  bool operator==(const Score&) const = default;
};

// All that a run needs to go on where it was. Knows nothing of ranks or devices.
struct Checkpoint {
  std::string model;          // name in the zoo
  std::string optimizer;      // that the states are of
  std::string configuration;  // the run's configuration as TOML, for the reader
  std::uint64_t seed = 0;
  std::uint64_t step = 0;          // steps done
  Cursor cursor;                   // where the data goes on
  std::string order;               // of the samples, as order_of() says it
  ImageSize image;                 // that the network gets
  DatasetInfo data;                // that it was trained on, but for its size
  std::vector<DataField> samples;  // that it was trained and evaluated on, see sample_fields(); none of an average
  std::string summing;             // how the gradients were summed, which their last bits depend on
  BucketOptions buckets;           // likewise
  std::uint64_t ranks = 0;         // that summed them
  std::optional<std::uint64_t> crossover;  // see AllReduce
  std::uint64_t tuned_for_ranks = 0;       // the buckets, where --bucket auto chose them; 0: it did not
  std::optional<LossScaling::State> loss_scaling;
  std::optional<Score> score;  // where it was evaluated
  std::vector<NamedTensor> parameters;

  bool averages() const { return !parameters.empty() && !parameters.front().average.empty(); }
};

// An HDF5 file:
//   attributes of the root group: format ("annulus checkpoint"), version (2), model, optimizer, configuration, seed,
//                                 step, epoch, position, order, image_height, image_width, summing,
//                                 ranks, crossover_bytes (where one was measured), bucket_bytes, deferred_percent,
//                                 tuned_for_ranks, classes, mean, deviation, data_height, data_width (0: encoded
//                                 images), samples (strings such as "the number of training images=60000")
//   /parameters/<name>            float32, row-major
//   /velocity/<name>              the same shape, for the parameters that the optimizer updates
//   /second_moment/<name>         likewise, where the optimizer has it
//   /average/<name>               likewise, for all parameters, where the run keeps a moving average of them
//   The step counts the optimizer's updates as well. loss_scale and good_steps are there after training in fp16, and
//   correct and count where it was evaluated.
// and, behind it, "sealed 2" and a checksum (XXH3, 64 bits) of all bytes before these.
//
// Written under another name in the same folder, flushed to the disk and renamed: at every instant `file` is either
// the old checkpoint or the new one, whole. Throws Error (a full disk, no permission) with the old one untouched.
// `written` is called when all is written, but for the renaming.
void write_checkpoint(
    const std::filesystem::path& file, const Checkpoint& checkpoint, const std::function<void()>& written = [] {});

// A checkpoint that a newer program made: it may be whole.
class NewerCheckpoint : public Error {
 public:
  using Error::Error;
};

// Throws Error naming the file and what is wrong: missing, truncated, altered, not a checkpoint, another version.
Checkpoint read_checkpoint(const std::filesystem::path& file);

// Throws Error naming `file` and the first tensor or attribute that makes it useless for computing: values that are not
// finite, or normalization that does not fit the images.
void expect_usable(const Checkpoint& checkpoint, const std::filesystem::path& file);

// "lenet after 938 steps".
std::string description(const Checkpoint& checkpoint);

// The score alone; nothing where there is none, or no checkpoint that could be read.
std::optional<Score> read_score(const std::filesystem::path& file);

}  // namespace annulus
