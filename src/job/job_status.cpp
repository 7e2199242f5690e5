#include "src/job/job_status.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "src/io/terminal.h"

namespace annulus {
namespace {

void report(const std::string& state) {
  if (std::getenv("ANNULUS_REPORT_STATUS") == nullptr) return;
  std::fflush(nullptr);
  write_to_stderr(fmt::format("annulus: the job {}\n", state));
}

}  // namespace

void report_job_status(int status, std::ptrdiff_t ranks_lost) {
  report(fmt::format("ends with status {}, ranks lost: {}", status, ranks_lost));
}

void report_survival() {
  report("survives lost ranks");
}

}  // namespace annulus
