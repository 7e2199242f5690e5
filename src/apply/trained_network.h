#pragma once

#include <filesystem>
#include <string>

#include "models/zoo.h"
#include "src/checkpoint/checkpoint.h"
#include "src/data/input_plan.h"

namespace annulus {

// A checkpoint's network, to be used without the data that it was trained on.
struct TrainedNetwork {
  std::filesystem::path file;
  Checkpoint checkpoint;
  std::vector<std::string> damaged;  // newer ones: see StoredCheckpoint
  bool averaged;                     // which weights are meant: their moving average, or those that were trained
  InputPlan input;                   // what evaluation makes of images such as those that it was trained on
  Graph graph;

  const std::vector<float>& weights(const NamedTensor& parameter) const {
    return averaged ? parameter.average : parameter.values;
  }
};

// `checkpoint`: a file, or a run's folder. `weights` and `processors`: see takes_average() and evaluation_input().
// Throws Error naming the file, also if its values are not usable.
TrainedNetwork read_trained_network(const std::filesystem::path& checkpoint, const std::string& weights,
                                    std::size_t processors);

// How evaluation makes images of such data into the network's, with as many threads; bad images are skipped.
InputPlan evaluation_input(const Checkpoint& checkpoint, const DatasetInfo& data, std::size_t processors);

// For data that a trained network is used on. Throws Error if its channels differ from those of the images that the
// network was trained on, or, unless `changed` says that this is meant, its classes. Returns a line if its
// normalization differs, which is then not applied, else an empty string.
std::string expect_fitting_data(const Checkpoint& checkpoint, const std::filesystem::path& file,
                                const DatasetInfo& data, const std::string& name, bool changed);

// Whether the averaged weights are to be taken: "ema", "raw", or "auto", where there are any. Throws Error naming
// `file` where "ema" has none.
bool takes_average(const Checkpoint& checkpoint, const std::filesystem::path& file, const std::string& weights);

}  // namespace annulus
