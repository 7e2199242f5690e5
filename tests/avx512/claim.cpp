// If preloaded, makes oneDNN assume that the processor has AVX-512, so that plans for such processors can be created on
// any. They cannot be run. Needs a copy of libdnnl in which every cpuid and xgetbv is an undefined instruction
// (plans.py).

#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

namespace {

// The features F, DQ, CD, BW and VL; and the state of their registers, which the operating system saves.
constexpr unsigned kFeatures = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr unsigned kSavedState = 0xE6;

void claim(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* const instruction = reinterpret_cast<const unsigned char*>(registers[REG_RIP]);
  const auto leaf = static_cast<unsigned>(registers[REG_RAX]), part = static_cast<unsigned>(registers[REG_RCX]);
  if (instruction[0] != 0x0F || instruction[1] != 0x0B) {
    signal(SIGILL, SIG_DFL);
    return;
  }
  if (instruction[2] == 0x90) {  // xgetbv
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(part));
    registers[REG_RAX] = low | kSavedState;
    registers[REG_RDX] = high;
    registers[REG_RIP] += 3;
    return;
  }
  unsigned a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) b |= kFeatures;
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

// Runs before oneDNN's own constructors, which query the features once: a test program replaces the handler later.
__attribute__((constructor)) void install() {
  struct sigaction action {};
  action.sa_sigaction = claim;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  if (void* const isa = dlsym(RTLD_DEFAULT, "dnnl_get_effective_cpu_isa")) reinterpret_cast<int (*)()>(isa)();
}

}  // namespace
