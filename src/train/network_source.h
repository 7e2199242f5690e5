#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "models/zoo/zoo.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/data/image.h"
#include "src/train/train_options.h"

namespace annulus {

// The network of --model, if that is a file.
struct NetworkSource {
  std::string onnx;  // the file without the values of the network's parameters; empty for a network of the zoo

  // On rank 0, unless the run resumes without the file:
  std::set<std::string> buffers;                      // the network's parameters that always have the file's values
  std::set<std::string> others;                       // PyTorch's tensors that are not the network's parameters
  std::map<std::string, std::vector<float>> weights;  // by the parameters' names
  std::vector<std::string> notes;                     // for the user
};

// Reads the file on rank 0, or if the run resumes and the file is gone, the newest checkpoint's network.
// Collective. Throws Error if the network cannot be trained for this task.
NetworkSource open_network(const World& world, const TrainOptions& options, const Task& task,
                           const CheckpointFolder& checkpoints);

// Returns the size to which encoded images are scaled without --image: the resumed network's, or the size that the file
// of --model was exported for. None for a new network of the zoo. Collective.
ImageSize network_image_size(const World& world, const TrainOptions& options, const CheckpointFolder& checkpoints);

}  // namespace annulus
