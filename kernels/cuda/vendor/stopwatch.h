#pragma once

#include <limits>
#include <string>
#include <vector>

#include "kernels/base/median.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Measures work on the current device.
class Stopwatch {
 public:
  // Runs work(stream) a few times and returns the median time, in microseconds. Returns the first run's time if that is
  // far longer than `least`.
  template <class Work>
  double measure(const Work& work, double least = std::numeric_limits<double>::infinity()) {
    constexpr int kRuns = 5;
    constexpr double kHopeless = 2;
    work(stream());  // the first run loads the kernels, and may compile them
    std::vector<double> times{time(work)};
    if (times[0] > kHopeless * least) return times[0];
    while (times.size() < kRuns) times.push_back(time(work));
    return median(times);
  }

  cudaStream_t stream() const { return stream_.get(); }

 private:
  template <class Work>
  double time(const Work& work) {
    check(cudaEventRecord(begin_.get(), stream()));
    work(stream());
    check(cudaEventRecord(end_.get(), stream()));
    check(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(milliseconds);
  }

  Stream stream_ = make_stream();
  Event begin_ = make_timed_event(), end_ = make_timed_event();
};

// Allocates memory on the current device that holds positive and negative numbers, small in either 16-bit type, for all
// streams. (Multiplying equal numbers takes a GPU less power, so it would run faster.)
Buffer allocate_numbers(std::size_t bytes);

std::string current_device_name();  // by which a tuning file knows it

}  // namespace annulus::cuda
