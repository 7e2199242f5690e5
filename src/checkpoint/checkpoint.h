#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
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
#include "src/io/hdf5.h"

namespace annulus {

// A parameter in a form independent of the device and the rank count: row-major float32.
struct NamedTensor {
  std::string name;  // "layer1.0.conv1.weight"
  Shape shape;
  std::vector<float> values;
  // The optimizer's states: momentum and, for some optimizers, the second moment. Empty if it does not update this
  // parameter.
  std::vector<std::vector<float>> states;
  std::vector<float> average{};         // the values' moving average; empty if the run keeps none
  std::vector<float> outer_velocity{};  // of an outer optimizer; empty if there is none
};

// The groups in a checkpoint's file, in which each parameter has an array under that parameter's name: the values, the
// optimizer's states, and what else NamedTensor has.
constexpr std::string_view kParameters = "parameters", kAverage = "average", kOuterVelocity = "outer_velocity";
constexpr std::array<std::string_view, 2> kStateNames = {"velocity", "second_moment"};

// A checkpoint without tensors. Independent of ranks and devices.
struct CheckpointHeader {
  std::string model;  // name in the zoo, or of an ONNX file
  std::string onnx;   // that file without the parameters' values; empty for the zoo
  std::string loss = "softmax";
  std::string optimizer;      // the states belong to it
  std::string configuration;  // the run's configuration as TOML, for human readers
  std::uint64_t seed = 0;
  RunState run;
  std::string order;                  // the samples' order, as returned by order_of()
  ImageSize image;                    // size of the network's input
  DatasetInfo data;                   // the training data; the size is not stored
  std::vector<DataField> samples;     // for the training and test data, see sample_fields(); empty for an average
  std::string summing;                // how gradients were all-reduced; their last bits depend on it
  std::vector<std::string> frozen{};  // names of the parameters that training did not change
  std::vector<std::string> cuts{};    // the first layer of each stage of a pipeline after the first
};

// Everything that a run needs to resume, in memory.
struct Checkpoint : CheckpointHeader {
  std::vector<NamedTensor> parameters;

  bool averages() const { return !parameters.empty() && !parameters.front().average.empty(); }
};

// An array in a checkpoint's file: /<group>/<name>.
struct CheckpointArray {
  std::string_view group;
  const std::string& name;
  const Shape& shape;
  std::span<const float> values;
};

// A checkpoint's arrays in sequence, so that they need not be in memory together.
struct ArraySource {
  std::size_t arrays = 0, values = 0;  // how many arrays, and values in them; or more
  std::function<void(const std::function<void(const CheckpointArray&)>& visit)> for_each;
};
std::vector<CheckpointArray> arrays_of(const NamedTensor& tensor);
ArraySource arrays_of(const Checkpoint& checkpoint);  // REQUIRES: the checkpoint outlives it

// An HDF5 file:
//   attributes of the root group: format ("annulus checkpoint"), version (4), model, loss, optimizer, configuration,
//                                 seed, order, image_height, image_width, summing, labels (the number of a
//                                 LabelKind), classes (or values), mean, deviation,
//                                 data_height, data_width (0: encoded images), for text vocabulary, length,
//                                 mask_token, prediction (the number of a Prediction) and
//                                 tokenizer_data (FORMAT.md), samples (strings such as "the number of
//                                 training images=60000"), frozen (names of parameters; absent if there are none),
//                                 cuts (names of layers; absent if there are none), and the numbers of
//                                 kRunStateFields (run_state.h)
//   /parameters/<name>            float32, row-major
//   /velocity/<name>              the same shape, for the parameters that the optimizer updates
//   /second_moment/<name>         that shape and these parameters, if the optimizer has it
//   /average/<name>               the same shape, for all parameters, if the run keeps a moving average
//   /outer_velocity/<name>        the same shape, for the parameters that are updated, if the run has --outer nesterov
//   /onnx                         uint8, the network's bytes, if it is not in the zoo
//   The step also counts the optimizer's updates.
// followed by "sealed 2" and a checksum (XXH3, 64 bits) over all bytes before it.
//
// The file is written under another name in the same folder, flushed to the disk and renamed: at any instant `file` is
// either the complete old checkpoint or the complete new checkpoint. Throws Error (disk full, no permission) and leaves
// the old file untouched. `written` is called after everything is written and before the renaming.
void write_checkpoint(
    const std::filesystem::path& file, const CheckpointHeader& header, const ArraySource& arrays,
    const std::function<void()>& written = [] {});
void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint);

// Another version of the program wrote the checkpoint, which may be intact.
class UnknownVersion : public Error {
 public:
  using Error::Error;
};

// A checkpoint's file, open for reading array by array. All functions throw Error naming the file and the problem.
class CheckpointFile {
 public:
  // Throws Error if it is missing, truncated, altered, not a checkpoint, or from another version.
  explicit CheckpointFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const CheckpointHeader& header() const { return header_; }
  const std::vector<std::string>& names() const { return names_; }  // parameters, in the file's order
  bool averages() const { return has(kAverage, names_.empty() ? "" : names_.front()); }

  bool has(std::string_view group, const std::string& name) const;  // such an array
  Shape shape(const std::string& name) const;                       // a parameter's
  std::vector<float> read(std::string_view group, const std::string& name) const;
  ArraySource arrays() const;  // without their numbers. REQUIRES: this outlives it

 private:
  std::filesystem::path path_;
  hdf5::Group root_;
  CheckpointHeader header_;
  std::vector<std::string> names_;
};

Checkpoint read_checkpoint(const CheckpointFile& file);  // with all arrays
Checkpoint read_checkpoint(const std::filesystem::path& path);

// Throws Error naming `file` and the first tensor or attribute that is unusable: non-finite values, or normalization
// that does not fit the images.
void expect_usable(const CheckpointHeader& header, const ArraySource& arrays, const std::filesystem::path& file);
void expect_usable(const CheckpointFile& file);

// "lenet after 938 steps".
std::string description(const CheckpointHeader& checkpoint);

// Returns the score only; nothing if there is none or the checkpoint cannot be read.
std::optional<Score> read_score(const std::filesystem::path& file);

}  // namespace annulus
