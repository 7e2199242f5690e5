#pragma once

#include <vector>

#include "kernels/base/jpeg_decoder.h"
#include "kernels/base/shown_image.h"
#include "src/data/augment.h"
#include "src/data/data_options.h"
#include "src/data/dataset.h"
#include "src/data/sampler.h"
#include "src/data/views.h"

namespace annulus {

// Says how samples become batches: the data options, with all defaults resolved.
struct InputPlan {
  // The network's input: images, or text windows.
  ImageSize image;
  std::size_t channels = 0;
  double margin = 1;  // see margin_of()
  Augmentation augmentation;
  std::vector<View> views{View{}};  // in evaluations
  WindowForm window{0};             // of text; length 0: images
  bool shift_windows = false;       // randomly, by less than `length` tokens

  Shuffle shuffle;
  std::size_t workers = 1;   // loader threads, which read and decode
  std::size_t prefetch = 3;  // batches prepared in advance
  bool skip_bad = false;
  bool replace_bad = false;  // use the next good sample instead, so that batches keep their size

  bool resident = false;  // batches have ShownImages instead of pixels

  MakeJpegDecoder make_decoder{};  // called by each loader thread; empty: libjpeg decodes all images

  // Returns the margin of a stored image, see centre_crop(). Images of the network's size have none.
  double margin_of(const ImageSize& stored) const { return stored == image ? 1 : margin; }

  // Returns a sample's size in bytes.
  std::size_t image_bytes() const {
    if (resident) return sizeof(ShownImage);
    return is_text() ? window.size() * sizeof(std::int32_t) : image.height * image.width * channels;
  }
  bool is_text() const { return window.length > 0; }

  // Returns whether ShownImages can say how images become the network's input.
  bool only_moves(const DatasetInfo& info) const {
    return !is_text() && !info.encoded() && takes_as_stored({info.height, info.width}) && augmentation.only_moves();
  }

  // Returns whether images stored with this size reach the network without resizing.
  bool takes_as_stored(const ImageSize& stored) const { return stored == image && augmentation.crop != Crop::resized; }
};

std::string to_string(const InputPlan& plan);     // for people
std::string name_of(const DataOptions& options);  // names the data set by the files

// Names all that determines an epoch's sample order besides the seed, as command line options.
std::string order_of(const InputPlan& plan, const DatasetInfo& info);

enum class Purpose { training, evaluation };

// `processors`: the default number of workers. `trained`: an already trained network's image size, the default for the
// network's input; {}: none. Throws Error if the options do not fit the data.
InputPlan plan_input(const DataOptions& options, const DatasetInfo& info, Purpose purpose, std::size_t processors,
                     const ImageSize& trained = {});

}  // namespace annulus
