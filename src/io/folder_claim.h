#pragma once

#include <filesystem>
#include <string>

#include "src/io/file_descriptor.h"

namespace annulus {

// A folder that belongs to this program, and to one process at a time: that of a run, or of an unfinished import. It
// holds a file annulus.lock, which marks the folder as ours and stays there. While this object lives, the file is
// locked; the kernel releases the lock when the process ends, however it ends. On a network file system the lock holds
// between hosts only if the mount passes locks to the server (NFS without nolock or local_lock); file systems without
// locks give none.
class FolderClaim {
 public:
  // Makes the folder if there is none. Throws Error if it holds files but no mark, unless `adopt`; and if another
  // process has it, naming that. `advice`: what to do then.
  FolderClaim(const std::filesystem::path& folder, bool adopt, const std::string& advice);

  bool is_new() const { return is_new_; }  // the folder was not there
  void clear() const;                      // removes everything but the mark
  void remove() const;                     // the folder as well

 private:
  std::filesystem::path folder_;
  bool is_new_;
  FileDescriptor lock_;
};

}  // namespace annulus
