#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "models/network/model.h"

namespace annulus {

// Sets the initial weights of every rank's model, batch norm's statistics included, from rank 0's file: a safetensors
// file with PyTorch's state_dict of the same network, or an index of several (see WeightFiles), or a checkpoint or a
// run's folder (its averaged weights if it has them). The file may also have `others`, and names may have what wrappers
// add (see match_names()). If the file's head has another number of classes, or it has no head, the model's keeps its
// values. PyTorch's counters of batches are ignored, and so is the auxiliary classifier of Inception. Collective.
//
// Returns lines that describe this, on rank 0. Throws Error, naming the first differences, if the file does not have
// exactly the network's parameters.
std::vector<std::string> load_initial_weights(const World& world, const std::filesystem::path& file,
                                              const std::set<std::string>& others, Model& model);

// Sets the initial weights of every rank's model from rank 0's values by the parameters' names; others keep theirs.
// Collective.
void set_initial_weights(const World& world, const std::map<std::string, std::vector<float>>& values, Model& model);

}  // namespace annulus
