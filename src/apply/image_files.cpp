#include "src/apply/image_files.h"

#include <utility>

#include "kernels/base/error.h"
#include "src/import/source.h"
#include "src/io/file_io.h"

namespace annulus {

ImageFiles::ImageFiles(std::vector<std::string> files, std::size_t channels) : files_(std::move(files)) {
  info_.size = files_.size();
  info_.channels = channels;
}

void ImageFiles::read_image(std::size_t sample, std::span<std::uint8_t>) const {
  fail("{}: not decoded", place(sample));
}

void ImageFiles::read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const {
  read_file(files_[sample], kMostImageBytes, bytes);
}

}  // namespace annulus
