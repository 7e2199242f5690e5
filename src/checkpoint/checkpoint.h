#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/tensor.h"
#include "kernels/device.h"
#include "src/checkpoint/run_state.h"
#include "src/data/data_fingerprint.h"
#include "src/data/image.h"
#include "src/data/samples.h"

namespace annulus {

// A parameter in a form independent of the device and the number of ranks: row-major float32.
struct NamedTensor {
  std::string name;  // "layer1.0.conv1.weight"
  Shape shape;
  std::vector<float> values;
  // The optimizer's states: momentum and, for some optimizers, the second moment. Empty if it does not update this
  // parameter.
  std::vector<std::vector<float>> states;
  std::vector<float> average{};  // moving average of the values; empty if the run keeps none
};

// Names of the optimizer's states in a checkpoint.
constexpr std::array<std::string_view, 2> kStateNames = {"velocity", "second_moment"};

// Everything that a run needs to resume. Independent of ranks and devices.
struct Checkpoint {
  std::string model;  // name in the zoo, or of an ONNX file
  std::string onnx;   // that file without its parameters' values; empty for a network of the zoo
  std::string loss = "softmax";
  std::string optimizer;      // the states belong to it
  std::string configuration;  // the run's configuration as TOML, for human readers
  std::uint64_t seed = 0;
  RunState run;
  std::string order;               // of the samples, as returned by order_of()
  ImageSize image;                 // size of the network's input
  DatasetInfo data;                // the training data; its size is not stored
  std::vector<DataField> samples;  // of the training and test data, see sample_fields(); empty for an average
  std::string summing;             // how gradients were all-reduced; their last bits depend on it
  std::vector<NamedTensor> parameters;
  std::vector<std::string> frozen{};  // names of those that training did not change

  bool averages() const { return !parameters.empty() && !parameters.front().average.empty(); }
};

// An HDF5 file:
//   attributes of the root group: format ("annulus checkpoint"), version (4), model, loss, optimizer, configuration,
//                                 seed, order, image_height, image_width, summing, labels (the number of a
//                                 LabelKind), classes (or values), mean, deviation,
//                                 data_height, data_width (0: encoded images), of text vocabulary, length and
//                                 tokenizer_data (FORMAT.md), samples (strings such as "the number of
//                                 training images=60000"), frozen (names of parameters; absent if there are none), and
//                                 the numbers of kRunStateFields (run_state.h)
//   /parameters/<name>            float32, row-major
//   /velocity/<name>              the same shape, for the parameters that the optimizer updates
//   /second_moment/<name>         the same, if the optimizer has it
//   /average/<name>               the same shape, for all parameters, if the run keeps a moving average of them
//   /onnx                         uint8, the bytes of the network, if it is not one of the zoo
//   The step also counts the optimizer's updates.
// followed by "sealed 2" and a checksum (XXH3, 64 bits) of all bytes before it.
//
// The file is written under another name in the same folder, flushed to the disk and renamed: at any instant `file` is
// either the complete old checkpoint or the complete new one. Throws Error (disk full, no permission) and leaves the
// old one untouched. `written` is called after everything is written and before the renaming.
void write_checkpoint(
    const std::filesystem::path& file, const Checkpoint& checkpoint, const std::function<void()>& written = [] {});

// Another version of the program wrote the checkpoint, which may be intact.
class UnknownVersion : public Error {
 public:
  using Error::Error;
};

// Throws Error naming the file and the problem: missing, truncated, altered, not a checkpoint, another version.
Checkpoint read_checkpoint(const std::filesystem::path& file);

// Throws Error naming `file` and the first tensor or attribute that is unusable: non-finite values, or normalization
// that does not fit the images.
void expect_usable(const Checkpoint& checkpoint, const std::filesystem::path& file);

// "lenet after 938 steps".
std::string description(const Checkpoint& checkpoint);

// Returns the score only; nothing if there is none or the checkpoint cannot be read.
std::optional<Score> read_score(const std::filesystem::path& file);

}  // namespace annulus
