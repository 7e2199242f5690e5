#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace annulus {

// Requests of `annulus control` to a run, as a file in the run's folder, which rank 0 answers with another.

// Asks the run in `run` to go on without a rank. Prints the answer. Throws Error if no process is writing to the
// folder, if the run refuses, or if it ends or time passes without an answer.
void ask_to_exclude(const std::filesystem::path& run, int rank);

// By the run, after it has claimed the folder: removes unanswered requests to earlier runs, and their answers.
void discard_requests(const std::filesystem::path& run);

// By the run: if there is a request, calls `exclude` with the rank, and answers with what that returns: empty if it is
// granted, else the reason why not.
void answer_request(const std::filesystem::path& run, const std::function<std::string(int rank)>& exclude);

}  // namespace annulus
