#pragma once

#include <filesystem>
#include <string>

#include "src/import/collection.h"
#include "src/import/import_job.h"
#include "src/import/part.h"
#include "src/import/run_jobs.h"
#include "src/text/tokenizer.h"

namespace annulus {

// Imports text: stores documents as tokens, each document followed by the token that ends a text.

// Returns the tokenizer that `choice` names: "bytes" or "" ; "gpt2:FOLDER", see gpt2_tokenizer(); or "train:N", which
// trains a tokenizer with N tokens on the training text's first kTrainingBytes. Throws Error.
Tokenizer make_tokenizer(const std::string& choice, const SourceFolders& folders, const SourcePlan& plan);
constexpr std::size_t kTrainingBytes = std::size_t{32} << 20;

// Returns how many bytes a token is stored in: 1, 2 or 4.
std::size_t token_bytes(std::size_t vocabulary);

// Converts the source's pieces. For use by a single thread: keeps frequent words' tokens.
class DocumentConverter {
 public:
  explicit DocumentConverter(const ImportJob& job);

  // Writes a piece's part, unless `report` says to abandon the piece.
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

// Cuts off and holds out the end of a split's only document, a `share` of the tokens, as a validation document. Throws
// Error if the document is too short. `part`: the document's.
void hold_out_end(const std::filesystem::path& part, const Tokenizer& tokenizer, double share,
                  Collection::Split& split);

}  // namespace annulus
