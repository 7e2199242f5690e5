#pragma once

#include <set>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "src/onnx/file.h"
#include "src/onnx/trained_tensors.h"

namespace annulus {

class Reader;

// Which of a file's tensors training changes.
struct TrainedSummary {
  std::size_t trained = 0;               // the network's parameters
  std::vector<std::string> not_trained;  // real buffers and constants; running statistics are neither
  std::vector<std::string> unused;       // parameters on which the output does not depend

  // "trained: 5 tensors; not trained: 2 (mid.k, mid.m)"
  std::string text() const;
};

// `changed`: the tensors that became parameters in the graph's layers and are not frozen. Appends a line for the user
// to `notes` for each reason that is neither a buffer's nor a constant's.
TrainedSummary summarize(const Reader& reader, const OnnxFile& file, const Graph& graph,
                         const std::set<const onnx::TensorProto*>& changed, std::vector<std::string>& notes);

// Returns a line for the user who must export again, because the file lacks parameters that may be in use, or has other
// values for them; empty if it does not.
std::string lost_parameters(const OnnxFile& file, const TrainedTensors& trained);

}  // namespace annulus
