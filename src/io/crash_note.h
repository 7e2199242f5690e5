#pragma once

#include <string>

namespace annulus {

// Explains a crash on this thread while the note lives, for calls to a library that crashes on damaged files: the first
// line on stderr is "annulus: <place>: ...", and the signal then ends the process as before. `place` must outlive the
// note.
class CrashNote {
 public:
  explicit CrashNote(const std::string& place);
  CrashNote(const CrashNote&) = delete;
  ~CrashNote();

  static void watch();  // takes over the signals' actions; the first note does this as well

 private:
  const char* const before_;
};

}  // namespace annulus
