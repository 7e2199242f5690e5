#include "tests/unit/tar_file.h"

#include <archive.h>
#include <archive_entry.h>

#include <memory>

namespace annulus::test {

void write_tar(const std::filesystem::path& file, const std::vector<std::pair<std::string, std::string>>& members) {
  const std::unique_ptr<archive, int (*)(archive*)> writer(archive_write_new(), archive_write_free);
  archive_write_set_format_ustar(writer.get());
  if (file.extension() == ".gz") archive_write_add_filter_gzip(writer.get());
  if (file.extension() == ".zst") archive_write_add_filter_zstd(writer.get());
  archive_write_open_filename(writer.get(), file.c_str());
  for (const auto& [name, content] : members) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(entry.get(), name.c_str());
    const bool is_link = content == kHardLink || content == kSoftLink;
    archive_entry_set_size(entry.get(), is_link ? 0 : static_cast<la_int64_t>(content.size()));
    archive_entry_set_filetype(entry.get(), content == kSoftLink ? AE_IFLNK : AE_IFREG);
    if (content == kHardLink) archive_entry_set_hardlink(entry.get(), "1.jpg");
    if (content == kSoftLink) archive_entry_set_symlink(entry.get(), "1.jpg");
    archive_entry_set_perm(entry.get(), 0644);
    archive_write_header(writer.get(), entry.get());
    if (!is_link) archive_write_data(writer.get(), content.data(), content.size());
  }
  archive_write_close(writer.get());
}

}  // namespace annulus::test
