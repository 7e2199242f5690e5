#pragma once

#include "src/data/samples.h"

namespace annulus {

// JPEG and PNG files as samples without labels. A missing file is a bad sample.
class ImageFiles : public Samples {
 public:
  // `channels`: the decoded images'.
  ImageFiles(std::vector<std::string> files, std::size_t channels);

  std::int32_t label(std::size_t) const override { return 0; }
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const override;  // none is decoded
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const override;
  std::string place(std::size_t sample) const override { return files_[sample]; }

 private:
  std::vector<std::string> files_;
};

}  // namespace annulus
