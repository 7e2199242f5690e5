#include "src/data/stored_array.h"

#include <fcntl.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/base/error.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

constexpr std::size_t kIntegersAtOnce = 16;

template <class Signed>
std::int64_t integer(const std::uint8_t* from, bool has_sign) {
  Signed value;
  std::memcpy(&value, from, sizeof value);
  return has_sign ? value : static_cast<std::int64_t>(static_cast<std::make_unsigned_t<Signed>>(value));
}

// The formats of hdf5::Dataset::integer_form().
std::int64_t integer(const std::uint8_t* from, std::size_t bytes, bool has_sign) {
  switch (bytes) {
    case 1:
      return integer<std::int8_t>(from, has_sign);
    case 2:
      return integer<std::int16_t>(from, has_sign);
    case 4:
      return integer<std::int32_t>(from, has_sign);
    default:
      return integer<std::int64_t>(from, has_sign);
  }
}

}  // namespace

ReadableFile::ReadableFile(const std::filesystem::path& file)
    : path(file), descriptor(open_to_read(file)), checksums(BlockChecksums::find(descriptor, file)) {}

StoredArray::StoredArray(hdf5::Dataset dataset, std::shared_ptr<const ReadableFile> file) : file_(std::move(file)) {
  dataset.require_stored();
  const Shape shape = dataset.shape();
  count_ = shape.empty() ? 0 : shape.front();
  row_values_ = count_ == 0 ? 0 : elements(shape) / count_;
  auto form = dataset.integer_form();
  if (dataset.holds<float>()) form = {sizeof(float), true};
  const auto offset = dataset.offset();
  if (form && offset) {
    value_bytes_ = form->bytes;
    row_bytes_ = form->bytes * row_values_;
    offset_ = *offset;
    has_sign_ = form->has_sign;
    // Behind an external link.
    if (dataset.file() != file_->path) file_ = std::make_shared<const ReadableFile>(dataset.file());
    return;
  }
  if (!hdf5::thread_safe())
    fail("{}: chunked or compressed, and this HDF5 is not thread-safe; make it contiguous (h5repack -l CONTI -f NONE)",
         dataset.place());
  dataset_.emplace(std::move(dataset));
}

void StoredArray::keep(std::size_t& budget) {
  if (dataset_ || count_ * row_bytes_ > budget) return;
  try {
    check(0, count_);
  } catch (const Error& error) {
    fail("{}: {}", file_->path.string(), error.what());
  }
  std::vector<std::uint8_t> all(count_ * row_bytes_);
  read_at(file_->descriptor, file_->path, offset_, all);
  budget -= all.size();
  kept_ = std::move(all);
}

void StoredArray::map_rows() {
  if (!dataset_) mapping_ = FileMapping(file_->descriptor, offset_, count_ * row_bytes_);
}

bool StoredArray::whole() const {
  return size_of(file_->descriptor, file_->path) >= offset_ + count_ * row_bytes_;
}

void StoredArray::read_bytes(std::size_t first, std::size_t count, std::span<std::uint8_t> values) const {
  if (dataset_) return dataset_->read_rows(first, count, values);
  read_contiguous(first, values);
}

void StoredArray::read_floats(std::size_t row, std::span<float> values) const {
  if (dataset_) return dataset_->read_rows(row, 1, values);
  read_contiguous(row, {reinterpret_cast<std::uint8_t*>(values.data()), values.size_bytes()});
}

void StoredArray::read_contiguous(std::size_t first, std::span<std::uint8_t> rows) const {
  if (!kept_.empty()) {
    std::memcpy(rows.data(), kept_.data() + first * row_bytes_, rows.size());
    return;
  }
  read_at(file_->descriptor, file_->path, offset_ + first * row_bytes_, rows);
  check(first, row_bytes_ == 0 ? 0 : rows.size() / row_bytes_);
}

void StoredArray::read_integers(std::size_t first, std::span<std::int64_t> values) const {
  const std::size_t rows = row_values_ == 0 ? 0 : values.size() / row_values_;
  if (dataset_) return dataset_->read_rows(first, rows, values);
  if (!kept_.empty()) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = integer(kept_.data() + first * row_bytes_ + i * value_bytes_, value_bytes_, has_sign_);
    return;
  }
  check(first, rows);
  std::array<std::uint8_t, kIntegersAtOnce * sizeof(std::int64_t)> bytes;
  for (std::size_t done = 0; done < values.size(); done += kIntegersAtOnce) {
    const std::size_t count = std::min(kIntegersAtOnce, values.size() - done);
    read_at(file_->descriptor, file_->path, offset_ + first * row_bytes_ + done * value_bytes_,
            std::span(bytes).first(count * value_bytes_));
    for (std::size_t i = 0; i < count; ++i)
      values[done + i] = integer(bytes.data() + i * value_bytes_, value_bytes_, has_sign_);
  }
}

void StoredArray::will_need(std::size_t first, std::size_t count) const {
  if (dataset_) return;
  // A hint: if it is not followed, reading takes longer.
  static_cast<void>(::posix_fadvise(file_->descriptor.number(), static_cast<off_t>(offset_ + first * row_bytes_),
                                    static_cast<off_t>(count * row_bytes_), POSIX_FADV_WILLNEED));
}

}  // namespace annulus
