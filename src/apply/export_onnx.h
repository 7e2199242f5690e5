#pragma once

#include <filesystem>
#include <string>

namespace annulus {

struct ExportOptions {
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::filesystem::path output;
  bool overwrite = false;
};

// Runs `annulus export`: atomically writes the network of a checkpoint as an ONNX file (onnx.h). Its metadata have
// model, step, weights ("ema" or "raw"); classes, mean and deviation (the std) as JSON; and margin, by which the size
// of the largest centre crop is divided before it is scaled (augment.h, centre_crop). Throws Error.
void export_onnx(const ExportOptions& options);

}  // namespace annulus
