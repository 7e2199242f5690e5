// Ends the program with a line if this processor lacks an extension that the program was compiled for: a program that
// was built on a login node with -march=native would die of SIGILL on an older compute node. This file is compiled for
// every x86-64, and the check runs before all other code of the program; so it uses only the C library.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "src/compiled_features.h"

#if defined(__x86_64__)
namespace annulus {
namespace {

class Line {
 public:
  void add(const char* text) { add(text, std::strlen(text)); }
  void add(const Line& other) { add(other.text_, other.size_); }
  void print() const { (void)!write(STDERR_FILENO, text_, size_); }

 private:
  void add(const char* text, std::size_t size) {
    const std::size_t room = sizeof text_ - size_, added = size < room ? size : room;
    std::memcpy(text_ + size_, text, added);
    size_ += added;
  }

  char text_[1024];
  std::size_t size_ = 0;
};

class Missing {
 public:
  void expect(bool compiled, bool present, const char* name) {
    if (!compiled || present) return;
    names_.add(any_ ? ", " : "");
    names_.add(name);
    any_ = true;
  }
  bool any() const { return any_; }
  const Line& names() const { return names_; }

 private:
  Line names_;
  bool any_ = false;
};

// The compiler takes names as literals only.
Missing missing_features(const ProcessorFeatures& compiled) {
  Missing missing;
  __builtin_cpu_init();
  missing.expect(compiled.popcnt, __builtin_cpu_supports("popcnt"), "popcnt");
  missing.expect(compiled.sse4_2, __builtin_cpu_supports("sse4.2"), "sse4.2");
  missing.expect(compiled.avx, __builtin_cpu_supports("avx"), "avx");
  missing.expect(compiled.avx2, __builtin_cpu_supports("avx2"), "avx2");
  missing.expect(compiled.fma, __builtin_cpu_supports("fma"), "fma");
  missing.expect(compiled.bmi, __builtin_cpu_supports("bmi"), "bmi");
  missing.expect(compiled.bmi2, __builtin_cpu_supports("bmi2"), "bmi2");
  missing.expect(compiled.avx512f, __builtin_cpu_supports("avx512f"), "avx512f");
  missing.expect(compiled.avx512cd, __builtin_cpu_supports("avx512cd"), "avx512cd");
  missing.expect(compiled.avx512dq, __builtin_cpu_supports("avx512dq"), "avx512dq");
  missing.expect(compiled.avx512bw, __builtin_cpu_supports("avx512bw"), "avx512bw");
  missing.expect(compiled.avx512vl, __builtin_cpu_supports("avx512vl"), "avx512vl");
  missing.expect(compiled.avx512vnni, __builtin_cpu_supports("avx512vnni"), "avx512vnni");
  missing.expect(compiled.avx512vbmi, __builtin_cpu_supports("avx512vbmi"), "avx512vbmi");
  missing.expect(compiled.avx512bf16, __builtin_cpu_supports("avx512bf16"), "avx512bf16");
  missing.expect(compiled.avxvnni, __builtin_cpu_supports("avxvnni"), "avxvnni");
  return missing;
}

__attribute__((constructor(101))) void expect_compiled_features() {
  const Missing missing = missing_features(kCompiledFeatures);
  if (!missing.any()) return;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  Line line;
  line.add("annulus: the processor of ");
  line.add(host);
  line.add(" lacks ");
  line.add(missing.names());
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  line.add(
      ", which the program was compiled for: build it on such a machine, or for older ones with scripts/build build "
      "-DANNULUS_ARCH=x86-64");
  line.add(has_v3 ? "-v3\n" : "\n");
  line.print();
  _exit(EXIT_FAILURE);
}

}  // namespace
}  // namespace annulus
#endif
