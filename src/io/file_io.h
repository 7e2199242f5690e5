#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "src/io/file_descriptor.h"

namespace annulus {

// File operations with the operating system's error messages. All throw Error, naming the file.

// Opens regular files only, because a named pipe or a device may block the reader forever.
FileDescriptor open_to_read(const std::filesystem::path& file);
FileDescriptor open_to_write(const std::filesystem::path& file);  // REQUIRES: it exists

std::uint64_t size_of(const FileDescriptor& descriptor, const std::filesystem::path& file);  // in bytes, now

// Fills `bytes` from `position` on; throws Error if the file ends before.
void read_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
             std::span<std::uint8_t> bytes);

// Reads the whole file; throws Error if it has more than `most` bytes.
void read_file(const std::filesystem::path& file, std::size_t most, std::vector<std::uint8_t>& bytes);

// Writes all of `bytes`. Any thread and any process may write its own part of a file.
void write_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
              std::span<const std::uint8_t> bytes);

// Raises this process's open-file limit to the system's maximum: a data set may have a thousand shards.
void allow_many_open_files();

// Flushes the file to the disk.
void flush(const FileDescriptor& descriptor, const std::filesystem::path& file);

[[noreturn]] void fail_to_write(const std::filesystem::path& file);  // with the reason in errno

}  // namespace annulus
