#pragma once

namespace annulus {

// Prepares stdin, stdout and stderr; to be called first. Replaces a closed stream by /dev/null: otherwise the next file
// to be opened would get the stream's descriptor and the program's output. From now on, writing to stdout never fails,
// so that a long run goes on: status_after_output() reports the first error.
void prepare_standard_streams();

// Lets this process continue if the reader of stdout ends (train | head), instead of ending it with SIGPIPE.
void outlive_reader();

// Flushes stdout. If it could not be written, reports the reason on stderr, and returns a failure unless `status` is a
// failure already, or the reader ended.
int status_after_output(int status);

}  // namespace annulus
