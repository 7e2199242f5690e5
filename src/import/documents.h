#pragma once

#include <filesystem>
#include <string>

#include "src/import/collection.h"
#include "src/import/import_job.h"
#include "src/import/part.h"
#include "src/import/run_jobs.h"
#include "src/text/tokenizer.h"

namespace annulus {

// Imports of text. Documents are stored as tokens, each followed by the token that ends a text.

// Returns the tokenizer that `choice` names: "bytes" or "" ; "gpt2:FOLDER", see gpt2_tokenizer(); or "train:N", which
// trains one of N tokens on the first kTrainingBytes of the training text. Throws Error.
Tokenizer make_tokenizer(const std::string& choice, const SourceFolders& folders, const SourcePlan& plan);
constexpr std::size_t kTrainingBytes = std::size_t{32} << 20;

// Bytes of a stored token: 1, 2 or 4.
std::size_t token_bytes(std::size_t vocabulary);

// Converts pieces of the source. For one thread: it keeps the tokens of frequent words.
class DocumentConverter {
 public:
  explicit DocumentConverter(const ImportJob& job);

  // Writes the part of a piece, unless the report says to abandon it.
  void convert(const std::filesystem::path& parts, const PieceNumber& number, const Report& report);

 private:
  void write(PartWriter& part);

  const ImportJob& job_;
  const Tokenizer tokenizer_;
  const std::size_t token_bytes_;
  TextEncoder encoder_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint8_t> stored_;
};

// Cuts the end off the only document of a split, as one that is held out for validation: a share of its tokens. Throws
// Error if it is too short. `part`: the document's.
void hold_out_end(const std::filesystem::path& part, const Tokenizer& tokenizer, double share,
                  Collection::Split& split);

}  // namespace annulus
