#pragma once

#include <filesystem>
#include <string>

#include "src/io/output_file.h"

namespace annulus {

struct ExportOptions {
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::filesystem::path output;
  bool overwrite = false;
};

// Returns the kind of file that `annulus export` writes under this name: weights (src/weights/safetensors.h) if it ends
// with .safetensors, otherwise an ONNX file (onnx.h).
FileKind export_kind(const std::filesystem::path& output);

// Throws Error if the name has another kind's extension.
void expect_export_name(const std::filesystem::path& output);

// Runs `annulus export`: atomically writes a checkpoint's network, or the same network's state_dict in PyTorch. Both
// files' metadata have model, step, weights ("ema" or "raw"); classes, mean and deviation (the std) as JSON; and
// margin, by which the largest centre crop's size is divided before it is scaled (augment.h, centre_crop), unless the
// image has the network's size. Throws Error.
void export_network(const ExportOptions& options);

}  // namespace annulus
