#pragma once

#include <cstddef>

// Finds races between the threads of a kernel: two accesses to a byte of which at least one writes it, unless both are
// atomic, a barrier is between them, or one thread makes both. It does not matter in which order the threads ran.
// Blocks are ordered only if a thread of one, after a fence, changes a word atomically, and then a thread of the other
// accesses the word atomically before a fence. What came before the first fence, in its thread or before its block's
// last barrier, is before what comes after the second one, in its thread or after its block's next barrier. All else
// that blocks share they must access atomically. The program reports the first race and ends.
//
// Finds accesses of code that is compiled with -fsanitize=thread: then the compiler calls a function before each
// access, of a library in whose place races.cpp is linked.
namespace emulated::races {

// A kernel's accesses are checked between these calls, on the thread that makes them.
// `early`: it may start before its predecessor has ended, so a thread that accesses device memory before it has awaited
// that ends the program as well.
void begin_kernel(bool early);
void end_kernel();

void begin_block(unsigned number);
void begin_thread(unsigned number);  // or resumes it
void pass_block_barrier();
void pass_warp_barrier(unsigned warp);
void await_predecessor();
void pass_fence();  // the running thread; of the device or the system

// The stack of the kernel's thread that runs now, whose accesses are not checked.
void use_stack(const void* memory, std::size_t bytes);

}  // namespace emulated::races
