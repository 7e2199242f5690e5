#pragma once

#include "src/onnx/read.h"

namespace annulus {

// Throws Error if a language model's predictions in the first half of a window depend on tokens in the second half: the
// model would learn to copy the next token instead of predicting it. Computes two windows with random weights on a CPU.
// Networks that do not predict each next token pass.
void expect_causal(const OnnxFile& file, const ImportedNetwork& network);

}  // namespace annulus
