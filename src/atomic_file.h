#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace annulus {

// Makes or replaces a file as a whole: the content goes to "<file>.partial" in the same folder, is flushed to the disk
// and renamed, and the folder is flushed as well. At every instant, a power cut included, `file` is either what it was
// or the new content. One writer at a time; what a killed one left behind is overwritten by the next. Throws Error (no
// such folder, no permission, a full disk) with `file` untouched and nothing left behind.
void write_atomically(const std::filesystem::path& file, std::span<const std::byte> content);

}  // namespace annulus
