#include "tests/unit/image_files.h"

#include <png.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

namespace annulus::test {

Image picture(const ImageSize& size, std::size_t channels) {
  Image image;
  image.reshape(size, channels);
  std::uint8_t* pixel = image.pixels.data();
  for (std::size_t y = 0; y < size.height; ++y)
    for (std::size_t x = 0; x < size.width; ++x)
      for (std::size_t c = 0; c < channels; ++c) {
        const double a = static_cast<double>(y) * 0.11 + static_cast<double>(c), b = static_cast<double>(x) * 0.07;
        *pixel++ = static_cast<std::uint8_t>(127.5 + 80 * std::sin(a) * std::cos(b) + 40 * std::sin(a + 2 * b));
      }
  return image;
}

Bytes jpeg_of(const Image& image, const JpegForm& form) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);  // ends the program, as nothing here may fail
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(image.size.height);
  info.image_width = static_cast<JDIMENSION>(image.size.width);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : image.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, form.quality, TRUE);
  if (form.progressive) jpeg_simple_progression(&info);
  if (!form.halved_colours) info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
  info.arith_code = form.arithmetic ? TRUE : FALSE;
  if (!form.adobe_marker) info.write_Adobe_marker = FALSE;
  jpeg_start_compress(&info, TRUE);
  for (std::size_t y = 0; y < image.size.height; ++y) {
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + y * image.size.width * image.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const Bytes bytes(memory, memory + size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return bytes;
}

Bytes png_of(const ImageSize& size, int type, int bits, const Bytes& rows, bool interlaced, const Bytes& palette) {
  Bytes bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto append = [](png_structp writer, png_bytep data, std::size_t count) {
    auto& to = *static_cast<Bytes*>(png_get_io_ptr(writer));
    to.insert(to.end(), data, data + count);
  };
  png_set_write_fn(png, &bytes, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(size.width), static_cast<png_uint_32>(size.height), bits, type,
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!palette.empty())
    png_set_PLTE(png, info, reinterpret_cast<png_const_colorp>(palette.data()), static_cast<int>(palette.size() / 3));
  png_write_info(png, info);
  const std::size_t row_bytes = rows.size() / size.height;
  for (int pass = png_set_interlace_handling(png); pass > 0; --pass)
    for (std::size_t y = 0; y < size.height; ++y) png_write_row(png, rows.data() + y * row_bytes);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

Bytes png_of(const Image& image) {
  return png_of(image.size, image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, 8, image.pixels);
}

}  // namespace annulus::test
