#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

// Whether a loss of ranks interrupts this process: then all waits for other ranks throw Error. By any thread.
//
// A loss interrupts immediately, unless this process is in a section that needs nothing more from the lost rank. Then
// it interrupts when the section ends; likewise if such a section begins before a wait has thrown.
class Interruption {
 public:
  explicit Interruption(std::size_t ranks) : lost_(ranks), dispensable_(ranks) {}

  void lose(std::size_t rank);
  // `dispensable`: the ranks that this process can do without until the section ends.
  void begin_section(std::uint64_t number, std::span<const int> dispensable);
  void end_section();  // when it is complete
  void reset();        // ends the interruption; nobody counts as lost

  void set(bool interrupted) { interrupted_ = interrupted; }
  const std::atomic<bool>& interrupted() const { return interrupted_; }
  const std::atomic<bool>& lost(std::size_t rank) const { return lost_[rank]; }
  bool within_section() const { return within_section_; }
  std::uint64_t section() const { return section_; }  // the current or last section's number

 private:
  std::atomic<bool> interrupted_ = false, within_section_ = false;
  std::vector<std::atomic<bool>> lost_, dispensable_;  // by rank in the job
  std::atomic<std::uint64_t> section_ = 0;
};

}  // namespace annulus
