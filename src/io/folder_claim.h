#pragma once

#include <filesystem>
#include <string>

#include "src/io/file_descriptor.h"

namespace annulus {

// A folder that belongs to this program, and to a single process at a time, for a run or an unfinished import. It
// contains a file annulus.lock, which marks the folder as ours and stays there. While this object lives, the file is
// locked; the kernel releases the lock when the process ends in any way. On a network file system the lock works
// between hosts only if the mount passes locks to the server (NFS without nolock or local_lock); on file systems
// without locks there is no protection.
class FolderClaim {
 public:
  // Creates the folder if needed. Throws Error if it contains files but no mark, unless `adopt`; and if another process
  // holds it, naming that process. `advice`: how the user can proceed, for the messages; `adoption`: what makes the
  // program adopt other files, if anything does.
  FolderClaim(const std::filesystem::path& folder, bool adopt, const std::string& advice,
              const std::string& adoption = "");

  // Lets the job's other processes join: the claim lasts until all have ended. Throws Error.
  void share() const;
  static FolderClaim join(const std::filesystem::path& folder);  // after another process has called share()

  void sign() const;  // names this process in other processes' errors: it writes to the folder

  bool is_new() const { return is_new_; }  // the folder did not exist
  void clear() const;                      // removes everything but the mark
  void remove() const;                     // removes the folder too

 private:
  FolderClaim(const std::filesystem::path& folder, FileDescriptor lock);

  std::filesystem::path folder_;
  bool is_new_;
  FileDescriptor lock_;
};

// Throws Error if a claim would fail now, which it does not make: it neither creates nor writes anything.
void expect_claimable(const std::filesystem::path& folder, bool adopt, const std::string& advice,
                      const std::string& adoption = "");

// Returns whether a process holds a claim on the folder. False as well if that cannot be known: there is no mark, it
// cannot be read, or the file system has no locks.
bool is_claimed(const std::filesystem::path& folder);

// Returns whether a process has ever claimed the folder.
bool is_marked(const std::filesystem::path& folder);

// Returns "host a, process 12": the process that signed the claim last.
std::string claimant(const std::filesystem::path& folder);

// Returns a folder within `folder`: the claim on it belongs to the process that will claim `folder` next.
std::filesystem::path next_claim(const std::filesystem::path& folder);

}  // namespace annulus
