#include "src/import/archive.h"

#include <archive_entry.h>

#include <algorithm>

#include "src/io/file_io.h"

namespace annulus {
namespace {

constexpr std::size_t kBlockBytes = 1 << 18;

FileDescriptor open_archive(const std::filesystem::path& file) try {
  return open_to_read(file);
} catch (const Error& error) {
  throw ArchiveError(error.what());
}

}  // namespace

ArchiveReader::ArchiveReader(const std::filesystem::path& file)
    : file_(open_archive(file)), reader_(archive_read_new()) {
  archive_read_support_filter_gzip(reader_.get());
  archive_read_support_filter_zstd(reader_.get());
  archive_read_support_format_tar(reader_.get());
  check(archive_read_open_fd(reader_.get(), file_.number(), kBlockBytes));
}

// Ignores warnings, such as about names in an unknown character set. Fails on ARCHIVE_RETRY too: continuing would skip
// a damaged header and the member's content.
void ArchiveReader::check(int result) const {
  if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fail_for_its_reason();
}

void ArchiveReader::fail_for_its_reason() const {
  const char* reason = archive_error_string(reader_.get());
  throw ArchiveError(fmt::format("cannot read as a tar archive: {}", reason ? reason : "no reason given"));
}

bool ArchiveReader::next() {
  while (true) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(reader_.get(), &entry);
    if (result == ARCHIVE_EOF) return false;
    check(result);
    const char* name = archive_entry_pathname(entry);
    if (archive_entry_filetype(entry) == AE_IFDIR || name == nullptr) continue;
    name_ = name;
    is_file_ = archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == nullptr;
    size_ = static_cast<std::uint64_t>(archive_entry_size(entry));
    return true;
  }
}

void ArchiveReader::read(std::vector<std::uint8_t>& bytes) {
  bytes.clear();
  // Memory grows with the actual content, because the size in the header may be wrong.
  while (bytes.size() < size_) {
    const std::size_t begin = bytes.size();
    bytes.resize(std::min<std::uint64_t>(size_, begin + kBlockBytes));
    const la_ssize_t count = archive_read_data(reader_.get(), bytes.data() + begin, bytes.size() - begin);
    if (count < 0) fail_for_its_reason();
    if (count == 0) throw ArchiveError(fmt::format("{}: truncated", name_));
    bytes.resize(begin + static_cast<std::size_t>(count));
  }
}

}  // namespace annulus
