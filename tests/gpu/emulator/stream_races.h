#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Finds races between the streams of a process, with ANNULUS_EMULATED_RACES=streams: two accesses to a word of device
// memory by kernels, copies or fills of different streams, of which at least one writes it, if neither events nor flags
// (stream memory operations) nor a wait of the host order them, in whatever order the streams ran. A wait for a flag
// comes after the first write that suffices for it. The program reports the first race and ends. Accesses of kernels
// are those that emulated::races sees.
//
// Every thread, of a stream or of the host, has a vector clock: the time of each thread up to which it knows what
// happened. (Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978; Mattern, "Virtual time
// and global states of distributed systems", 1989.)
namespace emulated::stream_races {

using Clock = std::vector<std::uint32_t>;

bool on();

// What the running thread knows now, to be passed on, and to learn it. Empty if races are not looked for.
Clock release();
void acquire(const Clock& clock);

// The same by way of a flag or event, which reaches `value`, and had the value `before`.
void signal(const void* word, std::uint32_t before, std::uint32_t value);
void await(const void* word, std::uint32_t value);

// The running thread accesses device memory, of which these are accessible addresses.
void read(const void* address, std::size_t bytes);
void write(const void* address, std::size_t bytes);

}  // namespace emulated::stream_races
