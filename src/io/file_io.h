#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "src/io/file_descriptor.h"

namespace annulus {

// Files of the operating system's, with its reasons. All throw Error naming the file.

// Only regular files: a named pipe or a device may make its reader wait for ever.
FileDescriptor open_to_read(const std::filesystem::path& file);
FileDescriptor open_to_write(const std::filesystem::path& file);  // one that exists

std::uint64_t size_of(const FileDescriptor& descriptor, const std::filesystem::path& file);  // in bytes, now

// Fill `bytes` from `position` on; a file that ends before is an Error.
void read_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
             std::span<std::uint8_t> bytes);

// The whole file; one of more than `most` bytes is an Error.
void read_file(const std::filesystem::path& file, std::size_t most, std::vector<std::uint8_t>& bytes);

// All of them. Any thread and any process may write its own part of a file.
void write_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
              std::span<const std::uint8_t> bytes);

// Lets this process have as many files open as the system allows: a data set may have a thousand shards.
void allow_many_open_files();

// To the disk.
void flush(const FileDescriptor& descriptor, const std::filesystem::path& file);

[[noreturn]] void fail_to_write(const std::filesystem::path& file);  // for the reason that errno tells

}  // namespace annulus
