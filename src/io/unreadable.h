#pragma once

#include "kernels/base/error.h"

namespace annulus {

// The operating system refuses to open or read a file (permissions, too many open files, a failing disk): the content
// may be intact.
class Unreadable : public Error {
 public:
  using Error::Error;
};

}  // namespace annulus
