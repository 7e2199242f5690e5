#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "src/import/source.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/whole_plan.h"

namespace annulus::test {

// A source in a folder that is created once, some of whose files are rewritten each time.
class FuzzedSource {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;  // names and contents

  FuzzedSource(const SourceFormat& format, const Files& others) : format_(format) { write(others); }

  // Reads everything. Most inputs should throw Error.
  void read(const Files& files) {
    write(files);
    try {
      const SourceFolders folders{folder_.path(), folder_.path()};
      const SourcePlan plan = whole_plan(format_, folders);
      for (const SourceSplit& split : plan.splits) {
        for (std::size_t piece = 0; piece < split.pieces.size(); ++piece) read_piece(folders, plan, split, piece);
      }
    } catch (const Error&) {
    }
  }

 private:
  void write(const Files& files) const {
    for (const auto& [name, content] : files) write_text(folder_ / name, content);
  }

  void read_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece) {
    format_.read(folders, plan, split, piece, [&](const SourceSample& sample) {
      for (const std::uint8_t byte : sample.bytes) sum_ = sum_ + byte;  // all of them can be read
      return true;
    });
  }

  const SourceFormat& format_;
  TemporaryFolder folder_;
  volatile std::uint64_t sum_ = 0;
};

}  // namespace annulus::test
