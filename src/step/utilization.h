#pragma once

#include <optional>
#include <span>
#include <string>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "models/graph/graph.h"

namespace annulus {

// Model FLOPs utilization (MFU): the share of the ranks' peak that the network itself needs (Chowdhery et al., "PaLM:
// Scaling language modeling with pathways", 2022, appendix B):
//
//    model FLOPs of a step / (seconds of the step x peak FLOP/s of all ranks)
//
// The model FLOPs are those of forward and backward (Cost::training_flops). Recomputed activations count once. Winograd
// convolutions count as direct ones, so networks of 3x3 convolutions may exceed 100 %. The peak is that of float32
// multiply-adds in the vector registers of all threads of all ranks, or on GPUs that of matrix products in the device's
// precision. It is measured at the start, which needs no knowledge of clock rates and vector units; see node_peak().
struct Utilization {
  double sample_flops = 0;                      // of training on a sample
  std::optional<double> peak_flops_per_second;  // of all ranks
  std::string peak_of = "all threads with float32 in registers";

  // Returns the utilization of steps with this number of samples of all ranks. Nothing if it is unknown.
  std::optional<double> share(std::size_t samples, double seconds) const;

  std::string peak_text() const;  // "153.2 GFLOP/s, ..."; REQUIRES: it is known
};

// Returns the peak FLOP/s of a node that lends its ranks `processors`, from each rank's measured rates: their sum, but
// not more than all processors at the fastest thread's rate, because threads that take turns on a processor each
// measure all of it. An unknown number of processors (0) is no limit.
double node_peak(std::span<const double> sums, std::span<const double> fastest, int processors);

// Takes hundredths of a second. Collective; the same on every rank.
Utilization measure_utilization(const World& world, Device& device, const Graph& graph);

}  // namespace annulus
