#include "src/io/crash_note.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <mutex>

namespace annulus {
namespace {

constexpr std::array<int, 3> kSignals{SIGSEGV, SIGFPE, SIGABRT};

thread_local const char* noted_place = nullptr;
std::array<struct sigaction, kSignals.size()> earlier;

// Writes all parts together, so that several ranks' lines are not mixed. The system does not change the parts.
void print(std::array<const char*, 3> parts) {
  std::array<iovec, parts.size()> pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) pieces[i] = {const_cast<char*>(parts[i]), std::strlen(parts[i])};
  static_cast<void>(!::writev(STDERR_FILENO, pieces.data(), pieces.size()));
}

// The instruction is repeated on return, or abort() raises again, with the earlier action.
void explain(int signal, siginfo_t* info, void*) {
  if (noted_place != nullptr) {
    print({"annulus: ", noted_place,
           ": the HDF5 library crashed on it: probably damaged; restore the file from a copy, or make it again\n"});
    noted_place = nullptr;
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) ::sigaction(signal, &earlier[i], nullptr);
  if (info->si_code <= 0) ::raise(signal);  // sent by a process
}

}  // namespace

CrashNote::CrashNote(const std::string& place) : before_(noted_place) {
  static std::once_flag watching;
  std::call_once(watching, watch);
  noted_place = place.c_str();
}

void CrashNote::watch() {
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now {};
    ::sigaction(kSignals[i], &action, &now);
    if (now.sa_sigaction != explain) earlier[i] = now;
  }
}

CrashNote::~CrashNote() {
  noted_place = before_;
}

}  // namespace annulus
