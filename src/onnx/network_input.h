#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/onnx/reader.h"

namespace annulus {

// The input that a network reads for a task: images, or tokens.
class NetworkInput {
 public:
  virtual ~NetworkInput() = default;

  // Appends the first layers, if the input has any. Returns what nodes know about each of the file's inputs.
  virtual std::map<std::string, Item, std::less<>> add(GraphBuilder& builder) const = 0;

  // Appends the last layers. Returns the logits, or a language model's loss. Appends messages for the user to `notes`.
  virtual Value end(GraphBuilder& builder, Value output, std::vector<std::string>& notes) = 0;

  // The pixels that the network reads, which end() decides; automatic for tokens.
  virtual Pixels pixels() const { return Pixels::automatic; }

  virtual const char* sample() const = 0;  // for messages
};

// `batch`: in the shapes that the file computes. The file and the task must outlive the input. Throws Error naming the
// file if it does not read what the task has.
std::unique_ptr<NetworkInput> make_network_input(const OnnxFile& file, const Task& task, std::size_t batch);

}  // namespace annulus
