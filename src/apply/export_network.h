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

// The kind of file that `annulus export` writes under this name: of weights (src/weights/safetensors.h) if it ends with
// .safetensors, otherwise an ONNX file (onnx.h).
FileKind export_kind(const std::filesystem::path& output);

// Throws Error if the name has an extension of neither.
void expect_export_name(const std::filesystem::path& output);

// Runs `annulus export`: atomically writes the network of a checkpoint, or the state_dict of the same network in
// PyTorch. Both files' metadata have model, step, weights ("ema" or "raw"); classes, mean and deviation (the std) as
// JSON; and margin, by which the size of the largest centre crop is divided before it is scaled (augment.h,
// centre_crop). Throws Error.
void export_network(const ExportOptions& options);

}  // namespace annulus
