#include "src/data/image_codec.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdio>  // which jpeglib.h needs and does not include
#include <cstring>
#include <string>

#include <jerror.h>
#include <jpeglib.h>

#include "kernels/base/error.h"

namespace annulus {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Carries errors out of libjpeg and libpng: their error handlers must not return, and no C++ exception may pass through
// the libraries. So the handlers jump back to the caller, past nothing that has a destructor.
struct Complaint {
  std::jmp_buf caller;
  char text[std::max(JMSG_LENGTH_MAX, 256)] = "";
};

// Calls `work`, which calls a library. Returns false if the library reported an error.
template <class Work>
bool completes(Complaint& complaint, const Work& work) {
  if (setjmp(complaint.caller) != 0) return false;
  work();
  return true;
}

void require_reasonable(const ImageSize& size) {
  if (size.height * size.width <= kMostPixels) return;
  fail("an image of {}x{} pixels, above the limit of {}", size.height, size.width, kMostPixels);
}

void require_channels(std::size_t channels) {
  if (channels != 1 && channels != 3) fail("images are decoded to 1 or 3 channels, not {}", channels);
}

// Applies the ITU-R BT.601 weights, in units of 1/65536, like libjpeg and PIL.
std::uint8_t gray(unsigned red, unsigned green, unsigned blue) {
  return static_cast<std::uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16);
}

[[noreturn]] void jpeg_complain(j_common_ptr jpeg) {
  auto& complaint = *static_cast<Complaint*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, complaint.text);
  std::longjmp(complaint.caller, 1);
}

// Treats libjpeg's warnings as errors, except warnings about metadata.
void jpeg_note(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR) jpeg_complain(jpeg);
}

struct JpegHandle {
  jpeg_decompress_struct info{};
  ~JpegHandle() { jpeg_destroy_decompress(&info); }
};

// A JPEG image whose header has been read.
class Jpeg {
 public:
  explicit Jpeg(Bytes bytes) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = &complaint_;
    errors_.error_exit = jpeg_complain;
    errors_.emit_message = jpeg_note;
    const bool read = completes(complaint_, [&] {
      jpeg_create_decompress(&info_);
      jpeg_mem_src(&info_, bytes.data(), bytes.size());
      jpeg_read_header(&info_, TRUE);
    });
    if (!read) complain();
  }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;

  ImageSize size() const { return {info_.image_height, info_.image_width}; }

  // See baseline_rows().
  std::optional<Range> baseline_rows(std::size_t channels, const Window& crop, const ImageSize& least) const {
    const bool baseline = !info_.progressive_mode && !info_.arith_code && info_.data_precision == 8 &&
                          info_.comps_in_scan == info_.num_components;
    const bool colours =
        info_.jpeg_color_space == JCS_YCbCr || (info_.jpeg_color_space == JCS_GRAYSCALE && channels == 1);
    if (!baseline || !colours || scale(crop, least) != 8 || !is_complete_scan()) return std::nullopt;
    return rows(crop, info_.image_height);
  }

  Window decode(std::size_t channels, const Window& crop, const ImageSize& least, Image& into) {
    const bool inks = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = inks ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    info_.scale_num = scale(crop, least);
    info_.scale_denom = 8;
    const double shrunk = info_.scale_num / 8.0;
    Window found{shrunk * crop.top, shrunk * crop.left, shrunk * crop.height, shrunk * crop.width};
    if (!completes(complaint_, [&] { read(found, into); })) complain();
    if (inks) inks_to_colours(channels, into);
    return found;
  }

 private:
  [[noreturn]] void complain() const { fail("a damaged JPEG image: {}", complaint_.text); }

  // Returns a scale in eighths. Other scales exist but are slower than no scaling.
  static unsigned scale(const Window& crop, const ImageSize& least) {
    for (const unsigned eighths : {1u, 2u, 4u})
      if (crop.height * eighths >= 8.0 * static_cast<double>(least.height) &&
          crop.width * eighths >= 8.0 * static_cast<double>(least.width))
        return eighths;
    return 8;
  }

  // Returns whether exactly the first scan and the end marker follow the header.
  bool is_complete_scan() const {
    const auto* at = info_.src->next_input_byte;
    const auto* const end = at + info_.src->bytes_in_buffer;
    while ((at = static_cast<const std::uint8_t*>(std::memchr(at, 0xff, static_cast<std::size_t>(end - at)))) !=
               nullptr &&
           at + 1 < end) {
      const unsigned code = at[1];
      if (code == JPEG_EOI) return at + 2 == end;
      const bool is_data = code == 0, is_restart = (code & ~7u) == JPEG_RST0, is_padding = code == 0xff;
      if (!is_data && !is_restart && !is_padding) return false;
      at += is_padding ? 1 : 2;
    }
    return false;
  }

  // Returns the rows that a window touches, in an image with `height` rows.
  static Range rows(const Window& window, std::size_t height) {
    return {static_cast<std::size_t>(window.top),
            std::min(height, static_cast<std::size_t>(std::ceil(window.top + window.height)))};
  }

  // Decodes the rows and columns of `window`; then sets it to their position in `into`.
  void read(Window& window, Image& into) {
    jpeg_start_decompress(&info_);
    auto left = static_cast<JDIMENSION>(window.left);
    auto width = std::min(info_.output_width, static_cast<JDIMENSION>(std::ceil(window.left + window.width))) - left;
    const Range needed = rows(window, info_.output_height);
    if (width < info_.output_width) jpeg_crop_scanline(&info_, &left, &width);  // extends to a block boundary
    if (needed.begin > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(needed.begin));
    into.reshape({needed.size(), info_.output_width}, static_cast<std::size_t>(info_.output_components));
    std::array<JSAMPROW, 8> lines;
    for (std::size_t y = 0; y < needed.size();) {
      const std::size_t count = std::min(lines.size(), needed.size() - y);
      for (std::size_t i = 0; i < count; ++i) lines[i] = into.row(y + i).data();
      y += jpeg_read_scanlines(&info_, lines.data(), static_cast<JDIMENSION>(count));
    }
    window.top -= static_cast<double>(needed.begin);
    window.left -= left;
  }

  // Works in place: a pixel's 1 or 3 output bytes come before the 4 input bytes. Adobe's files contain 255 minus the
  // ink.
  void inks_to_colours(std::size_t channels, Image& image) const {
    const unsigned inverted = info_.saw_Adobe_marker ? 0 : 255;
    std::uint8_t* to = image.pixels.data();
    for (std::size_t i = 0; i < image.pixels.size(); i += 4) {
      const std::uint8_t* from = image.pixels.data() + i;
      const unsigned black = from[3] ^ inverted;
      unsigned colours[3];
      for (int c = 0; c < 3; ++c) colours[c] = ((from[c] ^ inverted) * black + 127) / 255;
      if (channels == 1) *to++ = gray(colours[0], colours[1], colours[2]);
      if (channels == 3)
        to = std::ranges::transform(colours, to, [](unsigned c) { return static_cast<std::uint8_t>(c); }).out;
    }
    image.reshape(image.size, channels);
  }

  jpeg_error_mgr errors_{};
  Complaint complaint_;
  JpegHandle handle_;
  jpeg_decompress_struct& info_ = handle_.info;
};

[[noreturn]] void png_complain(png_structp png, png_const_charp text) {
  auto& complaint = *static_cast<Complaint*>(png_get_error_ptr(png));
  std::snprintf(complaint.text, sizeof complaint.text, "%s", text);
  std::longjmp(complaint.caller, 1);
}

void png_ignore(png_structp, png_const_charp) {}

void png_take(png_structp png, png_bytep to, std::size_t count) {
  auto& left = *static_cast<Bytes*>(png_get_io_ptr(png));
  if (count > left.size()) png_error(png, "cut off");
  std::memcpy(to, left.data(), count);
  left = left.subspan(count);
}

struct PngHandle {
  png_structp png = nullptr;
  png_infop info = nullptr;
  ~PngHandle() { png_destroy_read_struct(&png, &info, nullptr); }
};

// A PNG image whose header has been read.
class Png {
 public:
  explicit Png(Bytes bytes) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &complaint_, png_complain, png_ignore);
    if (png_ == nullptr) fail("no memory to decode a PNG image");
    const bool read = completes(complaint_, [&] {
      info_ = png_create_info_struct(png_);
      png_set_read_fn(png_, &left_, png_take);
      png_read_info(png_, info_);
    });
    if (!read) complain();
  }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  ImageSize size() const { return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)}; }

  void decode(std::size_t channels, Image& into) {
    const bool colours = (png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) != 0;
    into.reshape(size(), colours ? 3 : channels);
    if (!completes(complaint_, [&] { read(channels, into); })) complain();
    if (into.channels > channels) colours_to_gray(into);
  }

 private:
  [[noreturn]] void complain() const { fail("a damaged PNG image: {}", complaint_.text); }

  void read(std::size_t channels, Image& into) {
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_scale_16(png_);
    png_set_strip_alpha(png_);
    if (channels == 3) png_set_gray_to_rgb(png_);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != into.row(0).size()) png_error(png_, "of an unsupported type");
    for (int pass = 0; pass < passes; ++pass)
      for (std::size_t y = 0; y < into.size.height; ++y) png_read_row(png_, into.row(y).data(), nullptr);
    png_read_end(png_, nullptr);
  }

  // Works in place, because the data only shrinks.
  static void colours_to_gray(Image& image) {
    for (std::size_t i = 0; i < image.pixels.size() / 3; ++i)
      image.pixels[i] = gray(image.pixels[3 * i], image.pixels[3 * i + 1], image.pixels[3 * i + 2]);
    image.reshape(image.size, 1);
  }

  Bytes left_;  // not yet read
  Complaint complaint_;
  PngHandle handle_;
  png_structp& png_ = handle_.png;
  png_infop& info_ = handle_.info;
};

constexpr std::array<std::uint8_t, 3> kJpegBegins{0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, 8> kPngBegins{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool begins_with(Bytes bytes, Bytes beginning) {
  return bytes.size() >= beginning.size() && std::ranges::equal(bytes.first(beginning.size()), beginning);
}

[[noreturn]] void fail_unknown(Bytes bytes) {
  if (bytes.empty()) fail("empty");
  fail("neither a JPEG nor a PNG image");
}

}  // namespace

Encoding encoding_of(Bytes bytes) {
  if (begins_with(bytes, kJpegBegins)) return Encoding::jpeg;
  if (begins_with(bytes, kPngBegins)) return Encoding::png;
  return Encoding::unknown;
}

ImageSize image_size(Bytes bytes) {
  ImageSize size;
  switch (encoding_of(bytes)) {
    case Encoding::jpeg:
      size = Jpeg(bytes).size();
      break;
    case Encoding::png:
      size = Png(bytes).size();
      break;
    case Encoding::unknown:
      fail_unknown(bytes);
  }
  require_reasonable(size);
  return size;
}

void decode(Bytes bytes, std::size_t channels, Image& into) {
  const ImageSize size = image_size(bytes);
  const Window whole{0, 0, static_cast<double>(size.height), static_cast<double>(size.width)};
  decode_crop(bytes, channels, whole, size, into);
}

Window decode_crop(Bytes bytes, std::size_t channels, const Window& crop, const ImageSize& least, Image& into) {
  require_channels(channels);
  switch (encoding_of(bytes)) {
    case Encoding::jpeg:
      return Jpeg(bytes).decode(channels, crop, least, into);
    case Encoding::png:
      Png(bytes).decode(channels, into);
      return crop;
    case Encoding::unknown:
      fail_unknown(bytes);
  }
  fail_unknown(bytes);
}

std::optional<Range> baseline_rows(Bytes bytes, std::size_t channels, const Window& crop, const ImageSize& least) {
  if (encoding_of(bytes) != Encoding::jpeg) return std::nullopt;
  return Jpeg(bytes).baseline_rows(channels, crop, least);
}

}  // namespace annulus
