#pragma once

namespace annulus {

// Prepares stdin, stdout and stderr; to be called first. Replaces a closed one by /dev/null, because otherwise the next
// file that is opened would get its number, and what is printed. From now on, writing to stdout never fails: the first
// error is kept, so that a long run goes on, and is reported by status_after_output().
void prepare_standard_streams();

// Lets this process go on if the reader of stdout ends (train | head), instead of ending it with SIGPIPE.
void outlive_reader();

// Flushes stdout. If it could not be written, reports the reason on stderr, and returns a failure unless `status` is
// one already, or the reader ended.
int status_after_output(int status);

}  // namespace annulus
