#pragma once

#include <filesystem>
#include <string>

#include "models/zoo/zoo.h"
#include "src/checkpoint/checkpoint.h"
#include "src/data/input_plan.h"

namespace annulus {

// A checkpoint's network, for use without the training data.
struct TrainedNetwork {
  CheckpointFile file;
  std::vector<std::string> damaged;  // see StoredCheckpoint
  bool averaged;                     // use the weights' moving average, not the trained weights
  InputPlan input;                   // how evaluation prepares images like the training images
  Graph graph;

  const CheckpointHeader& checkpoint() const { return file.header(); }
};

// `checkpoint`: a file, or a run's folder. `weights` and `processors`: see takes_average() and evaluation_input().
// Throws Error naming the file if it cannot be read or has unusable values.
TrainedNetwork read_trained_network(const std::filesystem::path& checkpoint, const std::string& weights,
                                    std::size_t processors);

// Returns how evaluation converts images in `data` to the network's input, with `processors` threads. Bad images are
// skipped.
InputPlan evaluation_input(const CheckpointHeader& checkpoint, const DatasetInfo& data, std::size_t processors);

// Checks data for use with a trained network. Throws Error if the images' channels differ from the training images', or
// if the classes differ and `changed` is false. Returns a message if the normalization differs, which is then not
// applied, else an empty string.
std::string expect_fitting_data(const CheckpointFile& file, const DatasetInfo& data, const std::string& name,
                                bool changed);

// Whether to use the averaged weights. `weights`: "ema", "raw", or "auto", which uses them if the checkpoint has them.
// Throws Error naming the file if "ema" is requested and the checkpoint has none.
bool takes_average(const CheckpointFile& file, const std::string& weights);

}  // namespace annulus
