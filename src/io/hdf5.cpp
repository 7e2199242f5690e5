#include "src/io/hdf5.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/base/error.h"
#include "src/io/block_checksums.h"
#include "src/io/checked_product.h"
#include "src/io/crash_note.h"
#include "src/io/file_io.h"

namespace annulus::hdf5 {
namespace {

using Type = Handle<H5Tclose>;
using Space = Handle<H5Sclose>;
using Attribute = Handle<H5Aclose>;

// At exit a program would close files again that could not be written, and HDF5 crashes then. The files have owners.
[[maybe_unused]] const herr_t kNothingAtExit = H5dont_atexit();

// Keeps HDF5 from printing every error to stderr. Each thread has a separate error stack, and so a separate switch.
void silence_this_thread() {
  thread_local const herr_t silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(silenced);
}

// Returns the innermost entry on the error stack. If the operating system refused, the system's reason without HDF5's
// wrapping.
std::string reason() {
  std::string text = "HDF5 gives no reason";
  const auto take_first = [](unsigned index, const H5E_error2_t* entry, void* result) -> herr_t {
    if (index == 0) *static_cast<std::string*>(result) = entry->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
  constexpr std::string_view kMark = "error message = '";
  if (const auto begin = text.find(kMark); begin != std::string::npos) {
    text.erase(0, begin + kMark.size());
    text.erase(std::min(text.find('\''), text.size()));
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Calls HDF5: check(place, "open", H5Oopen, id, ...). Negative results are failures throughout the HDF5 interface.
template <class... Parameters, class Result, class... Arguments>
Result check(const std::string& place, const char* action, Result (*function)(Parameters...), Arguments... arguments) {
  silence_this_thread();
  const CrashNote note(place);
  const Result result = function(static_cast<Parameters>(arguments)...);
  if (result < 0) fail("{}: cannot {}: {}", place, action, reason());
  return result;
}

template <class T>
hid_t native();
template <>
hid_t native<std::uint8_t>() {
  return H5T_NATIVE_UINT8;
}
template <>
hid_t native<std::uint16_t>() {
  return H5T_NATIVE_UINT16;
}
template <>
hid_t native<std::uint32_t>() {
  return H5T_NATIVE_UINT32;
}
template <>
hid_t native<std::int32_t>() {
  return H5T_NATIVE_INT32;
}
template <>
hid_t native<std::int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
hid_t native<std::uint64_t>() {
  return H5T_NATIVE_UINT64;
}
template <>
hid_t native<float>() {
  return H5T_NATIVE_FLOAT;
}

// Throws Error if the classes differ: HDF5 would silently convert floats to integers.
void require_class(const std::string& place, hid_t type, H5T_class_t wanted) {
  if (H5Tget_class(type) == wanted) return;
  fail("{}: must hold {}", place, wanted == H5T_STRING ? "strings" : wanted == H5T_FLOAT ? "floats" : "integers");
}

template <class T>
constexpr H5T_class_t kClass = std::is_floating_point_v<T> ? H5T_FLOAT : H5T_INTEGER;

// An attribute open for reading.
struct Reading {
  std::string place;
  Attribute attribute;
  Type type;
  Space space;
  std::size_t count;
};

Reading open_attribute(hid_t object, const std::string& object_place, const std::string& name) {
  const std::string place = object_place + " attribute '" + name + "'";
  if (check(place, "look up", H5Aexists, object, name.c_str()) == 0) fail("{}: missing", place);
  Attribute attribute(check(place, "open", H5Aopen, object, name.c_str(), H5P_DEFAULT));
  Type type(check(place, "read", H5Aget_type, attribute.id()));
  Space space(check(place, "read", H5Aget_space, attribute.id()));
  const auto count = static_cast<std::size_t>(check(place, "read", H5Sget_simple_extent_npoints, space.id()));
  return {place, std::move(attribute), std::move(type), std::move(space), count};
}

template <class T>
std::vector<T> read_numbers(const Reading& from) {
  require_class(from.place, from.type.id(), kClass<T>);
  std::vector<T> values(from.count);
  if (!values.empty()) check(from.place, "read", H5Aread, from.attribute.id(), native<T>(), values.data());
  return values;
}

std::vector<std::string> read_variable_strings(const Reading& from) {
  std::vector<char*> texts(from.count);
  check(from.place, "read", H5Aread, from.attribute.id(), from.type.id(), texts.data());
  std::vector<std::string> values;
  for (const char* text : texts) values.emplace_back(text ? text : "");
  H5Dvlen_reclaim(from.type.id(), from.space.id(), H5P_DEFAULT, texts.data());
  return values;
}

std::vector<std::string> read_fixed_strings(const Reading& from) {
  const std::size_t length = H5Tget_size(from.type.id());
  std::vector<char> texts(from.count * length);
  check(from.place, "read", H5Aread, from.attribute.id(), from.type.id(), texts.data());
  std::vector<std::string> values;
  for (std::size_t i = 0; i < from.count; ++i) {
    const char* text = texts.data() + i * length;
    values.emplace_back(text, strnlen(text, length));
  }
  return values;
}

// h5py makes strings with variable length from str and with fixed length from numpy's bytes.
std::vector<std::string> read_strings(const Reading& from) {
  require_class(from.place, from.type.id(), H5T_STRING);
  if (from.count == 0) return {};
  return H5Tis_variable_str(from.type.id()) > 0 ? read_variable_strings(from) : read_fixed_strings(from);
}

template <class T>
T only(const std::vector<T>& values, const std::string& place) {
  if (values.size() != 1) fail("{}: must be one value, not {}", place, values.size());
  return values.front();
}

void write_attribute(hid_t object, const std::string& object_place, const std::string& name, hid_t type,
                     const Space& space, const void* data) {
  const std::string place = object_place + " attribute '" + name + "'";
  const Attribute attribute(
      check(place, "create", H5Acreate2, object, name.c_str(), type, space.id(), H5P_DEFAULT, H5P_DEFAULT));
  if (data != nullptr) check(place, "write", H5Awrite, attribute.id(), type, data);  // an empty list has no data
}

Space scalar() {
  return Space(H5Screate(H5S_SCALAR));
}

Space list(std::size_t size) {
  const hsize_t extent = size;
  return Space(H5Screate_simple(1, &extent, nullptr));
}

// Without time stamps: the same content gives the same bytes, whenever it is written.
void keep_no_times(const Properties& of_object) {
  H5Pset_obj_track_times(of_object.id(), false);
}

Type text_type() {
  Type type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.id(), H5T_VARIABLE);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

std::string version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

bool thread_safe() {
  hbool_t result = false;
  return H5is_library_threadsafe(&result) >= 0 && result;
}

bool Object::has_attribute(const std::string& name) const {
  return check(place_, "look up", H5Aexists, id(), name.c_str()) > 0;
}

std::string Object::string(const std::string& attribute) const {
  const Reading from = open_attribute(id(), place_, attribute);
  return only(read_strings(from), from.place);
}

std::vector<std::string> Object::strings(const std::string& attribute) const {
  return read_strings(open_attribute(id(), place_, attribute));
}

std::vector<float> Object::floats(const std::string& attribute) const {
  return read_numbers<float>(open_attribute(id(), place_, attribute));
}

std::uint64_t Object::integer(const std::string& attribute) const {
  const Reading from = open_attribute(id(), place_, attribute);
  return only(read_numbers<std::uint64_t>(from), from.place);
}

void Object::set_string(const std::string& attribute, const std::string& value) {
  const char* text = value.c_str();
  write_attribute(id(), place_, attribute, text_type().id(), scalar(), &text);
}

void Object::set_strings(const std::string& attribute, std::span<const std::string> values) {
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  write_attribute(id(), place_, attribute, text_type().id(), list(texts.size()), texts.data());
}

void Object::set_floats(const std::string& attribute, std::span<const float> values) {
  write_attribute(id(), place_, attribute, native<float>(), list(values.size()), values.data());
}

void Object::set_integer(const std::string& attribute, std::uint64_t value) {
  write_attribute(id(), place_, attribute, native<std::uint64_t>(), scalar(), &value);
}

Shape Dataset::shape() const {
  const Space space(check(place(), "read", H5Dget_space, id()));
  const int rank = check(place(), "read", H5Sget_simple_extent_ndims, space.id());
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  check(place(), "read", H5Sget_simple_extent_dims, space.id(), extents.data(), nullptr);
  return {extents.begin(), extents.end()};
}

template <class T>
bool Dataset::holds() const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  return H5Tequal(type.id(), native<T>()) > 0;
}

bool Dataset::holds_integers() const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  return H5Tget_class(type.id()) == H5T_INTEGER;
}

std::optional<Dataset::IntegerForm> Dataset::integer_form() const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  if (H5Tget_class(type.id()) != H5T_INTEGER) return {};
  const std::size_t bytes = H5Tget_size(type.id());
  if (bytes > sizeof(std::int64_t))
    fail("{}: integers of {} bytes; at most {} are supported", place(), bytes, sizeof(std::int64_t));
  const bool is_padded = H5Tget_precision(type.id()) != 8 * bytes;
  if (is_padded || !std::has_single_bit(bytes) || H5Tget_order(type.id()) != H5Tget_order(H5T_NATIVE_INT)) return {};
  return IntegerForm{bytes, H5Tget_sign(type.id()) == H5T_SGN_2};
}

template <class T>
std::vector<T> Dataset::read() const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  require_class(place(), type.id(), kClass<T>);
  require_stored();
  std::vector<T> values(elements(shape()));
  check(place(), "read", H5Dread, id(), native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  return values;
}

// The space in memory has the same shape: between different ones HDF5 copies element by element.
Dataset::Rows Dataset::rows(std::size_t first, std::size_t count) const {
  const Shape whole = shape();
  std::vector<hsize_t> start(whole.size(), 0), extent(whole.begin(), whole.end());
  start.front() = first;
  extent.front() = count;
  Space space(check(place(), "read", H5Dget_space, id()));
  check(place(), "select", H5Sselect_hyperslab, space.id(), H5S_SELECT_SET, start.data(), nullptr, extent.data(),
        nullptr);
  return {std::move(space),
          Space(check(place(), "read", H5Screate_simple, static_cast<int>(extent.size()), extent.data(), nullptr))};
}

template <class T>
void Dataset::read_rows(std::size_t first, std::size_t count, std::span<T> values) const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  require_class(place(), type.id(), kClass<T>);
  const Rows selected = rows(first, count);
  check(place(), "read", H5Dread, id(), native<T>(), selected.in_memory.id(), selected.in_file.id(), H5P_DEFAULT,
        values.data());
}

void Dataset::require_stored() const {
  const Shape whole = shape();
  const Type type(check(place(), "read", H5Dget_type, id()));
  const auto bytes = checked_product(whole, H5Tget_size(type.id()));
  if (!bytes) fail("{}: shape {}, which is larger than the address space", place(), to_string(whole));
  const Properties properties(check(place(), "read", H5Dget_create_plist, id()));
  const H5D_layout_t layout = check(place(), "read", H5Pget_layout, properties.id());
  if (layout == H5D_VIRTUAL || H5Pget_external_count(properties.id()) != 0)
    fail("{}: its elements are in other files ({}); copy them into this one, for example with h5py", place(),
         layout == H5D_VIRTUAL ? "a virtual dataset" : "external storage");
  if (*bytes == 0) return;
  if (layout == H5D_CONTIGUOUS) require_contiguous_stored(*bytes);
  if (layout == H5D_CHUNKED) require_chunks_stored();
}

std::uint64_t Dataset::file_bytes() const {
  const Handle<H5Fclose> file(check(place(), "read", H5Iget_file_id, id()));
  hsize_t bytes = 0;
  check(place(), "read", H5Fget_filesize, file.id(), &bytes);
  return bytes;
}

void Dataset::require_contiguous_stored(std::uint64_t bytes) const {
  const haddr_t begin = H5Dget_offset(id());
  if (begin == HADDR_UNDEF) fail("{}: shape {}, but no element was ever written", place(), to_string(shape()));
  const std::uint64_t end = file_bytes();
  if (begin > end || bytes > end - begin)
    fail("{}: shape {} takes {} bytes, but the file has {}", place(), to_string(shape()), bytes, end);
}

Shape Dataset::chunk_shape() const {
  const Properties properties(check(place(), "read", H5Dget_create_plist, id()));
  std::vector<hsize_t> chunk(shape().size());
  check(place(), "read", H5Pget_chunk, properties.id(), static_cast<int>(chunk.size()), chunk.data());
  return {chunk.begin(), chunk.end()};
}

void Dataset::require_chunks_stored() const {
  const Shape whole = shape(), chunk = chunk_shape();
  Shape counts;
  for (std::size_t i = 0; i < whole.size(); ++i) counts.push_back((whole[i] - 1) / chunk[i] + 1);
  hsize_t written = 0;
  const Space space(check(place(), "read", H5Dget_space, id()));
  check(place(), "read", H5Dget_num_chunks, id(), space.id(), &written);
  const std::size_t promised = checked_product(counts).value();  // does not overflow: no more than the elements
  if (written < promised)
    fail("{}: shape {} has {} chunks, but only {} were ever written", place(), to_string(whole), promised, written);
}

std::string Dataset::file() const {
  const auto length = check(place(), "read", H5Fget_name, id(), nullptr, 0u);
  std::string name(static_cast<std::size_t>(length), '\0');
  check(place(), "read", H5Fget_name, id(), name.data(), name.size() + 1);
  return name;
}

std::optional<std::uint64_t> Dataset::offset() const {
  const Properties properties(check(place(), "read", H5Dget_create_plist, id()));
  if (H5Pget_layout(properties.id()) != H5D_CONTIGUOUS) return {};
  const haddr_t address = H5Dget_offset(id());
  return address == HADDR_UNDEF ? std::nullopt : std::optional<std::uint64_t>(address);
}

std::vector<std::uint64_t> Dataset::chunks(std::size_t rows) const {
  const Shape whole = shape();
  std::vector<hsize_t> first(whole.size(), 0);
  std::vector<std::uint64_t> begins;
  for (; first.front() < whole.front(); first.front() += rows) {
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    check(place(), "read", H5Dget_chunk_info_by_coord, id(), first.data(), nullptr, &address, &bytes);
    begins.push_back(address);
  }
  return begins;
}

std::vector<ByteRange> Dataset::ranges() const {
  const Type type(check(place(), "read", H5Dget_type, id()));
  if (const auto begin = offset()) return {{*begin, *begin + elements(shape()) * H5Tget_size(type.id())}};
  const Space space(check(place(), "read", H5Dget_space, id()));
  hsize_t written = 0;
  check(place(), "read", H5Dget_num_chunks, id(), space.id(), &written);
  std::vector<ByteRange> found;
  for (hsize_t chunk = 0; chunk < written; ++chunk) {
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    check(place(), "read", H5Dget_chunk_info, id(), space.id(), chunk, nullptr, nullptr, &address, &bytes);
    found.push_back({address, address + bytes});
  }
  return found;
}

// HDF5 reads the chunks without checking them, and writes them to the same place.
void Dataset::renew_checksums(const std::function<bool(std::size_t bytes)>& go_on) {
  const Properties unchecked(check(place(), "read", H5Pcreate, H5P_DATASET_XFER));
  check(place(), "read", H5Pset_edc_check, unchecked.id(), H5Z_DISABLE_EDC);
  const Shape whole = shape();
  const std::size_t chunk = chunk_shape().front(), row_bytes = elements(whole) / whole.front();
  std::vector<std::uint8_t> bytes;
  for (std::size_t first = 0; first < whole.front(); first += chunk) {
    const std::size_t count = std::min(chunk, whole.front() - first);
    bytes.resize(count * row_bytes);
    const auto [in_file, in_memory] = rows(first, count);
    const hid_t type = native<std::uint8_t>();
    check(place(), "read", H5Dread, id(), type, in_memory.id(), in_file.id(), unchecked.id(), bytes.data());
    check(place(), "write", H5Dwrite, id(), type, in_memory.id(), in_file.id(), unchecked.id(), bytes.data());
    if (!go_on(bytes.size())) return;
  }
}

std::string Group::place_of(const std::string& name) const {
  return place() + (place().ends_with('/') ? "" : "/") + name;
}

bool Group::has(const std::string& name) const {
  return check(place_of(name), "look up", H5Lexists, id(), name.c_str(), H5P_DEFAULT) > 0;
}

void Group::require(const std::string& name) const {
  if (!has(name)) fail("{}: missing", place_of(name));
}

std::vector<std::string> Group::names() const {
  const Properties properties(check(place(), "read", H5Gget_create_plist, id()));
  unsigned order = 0;
  check(place(), "read", H5Pget_link_creation_order, properties.id(), &order);
  const auto append = [](hid_t, const char* name, const H5L_info_t*, void* result) -> herr_t {
    static_cast<std::vector<std::string>*>(result)->emplace_back(name);
    return 0;
  };
  std::vector<std::string> result;
  const H5_index_t index = (order & H5P_CRT_ORDER_TRACKED) != 0 ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  check(place(), "list", H5Literate, id(), index, H5_ITER_INC, nullptr, append, &result);
  return result;
}

namespace {

// An external link may point to a named pipe, on which HDF5 would block forever.
herr_t expect_regular_file(const char* linking_file, const char*, const char* linked_file, const char*, unsigned*,
                           hid_t, void*) {
  const std::filesystem::path beside = std::filesystem::path(linking_file).parent_path() / linked_file;
  for (const std::filesystem::path& file : {std::filesystem::path(linked_file), beside}) {
    std::error_code none;
    if (std::filesystem::exists(file, none) && !std::filesystem::is_regular_file(file, none)) return -1;
  }
  return 0;
}

Properties follow_links(const std::string& place, hid_t property_class) {
  Properties access(check(place, "open", H5Pcreate, property_class));
  check(place, "open", H5Pset_elink_cb, access.id(), expect_regular_file, nullptr);
  return access;
}

}  // namespace

Group Group::group(const std::string& name) const {
  require(name);
  const std::string place = place_of(name);
  const Properties access = follow_links(place, H5P_GROUP_ACCESS);
  return {check(place, "open", H5Gopen2, id(), name.c_str(), access.id()), place};
}

Dataset Group::dataset(const std::string& name) const {
  require(name);
  const std::string place = place_of(name);
  const Properties access = follow_links(place, H5P_DATASET_ACCESS);
  return {check(place, "open", H5Dopen2, id(), name.c_str(), access.id()), place};
}

Group Group::create_group(const std::string& name) {
  const Properties properties(H5Pcreate(H5P_GROUP_CREATE));
  keep_no_times(properties);
  check(place_of(name), "create", H5Pset_link_creation_order, properties.id(),
        H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  return {check(place_of(name), "create", H5Gcreate2, id(), name.c_str(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
          place_of(name)};
}

template <class T>
void Group::write(const std::string& name, const Shape& shape, std::span<const T> values) {
  const std::string place = place_of(name);
  if (elements(shape) != values.size()) fail("{}: {} values for shape {}", place, values.size(), to_string(shape));
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Space space(
      check(place, "create", H5Screate_simple, static_cast<int>(extents.size()), extents.data(), nullptr));
  const Properties properties(check(place, "create", H5Pcreate, H5P_DATASET_CREATE));
  keep_no_times(properties);
  const Handle<H5Dclose> dataset(check(place, "create", H5Dcreate2, id(), name.c_str(), native<T>(), space.id(),
                                       H5P_DEFAULT, properties.id(), H5P_DEFAULT));
  check(place, "write", H5Dwrite, dataset.id(), native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

// HDF5 allocates datasets when they are first written, unless early allocation is requested.
template <class T>
Dataset Group::create(const std::string& name, const Shape& shape, const Properties& properties) {
  const std::string place = place_of(name);
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Space space(
      check(place, "create", H5Screate_simple, static_cast<int>(extents.size()), extents.data(), nullptr));
  keep_no_times(properties);
  check(place, "create", H5Pset_alloc_time, properties.id(), H5D_ALLOC_TIME_EARLY);
  return {check(place, "create", H5Dcreate2, id(), name.c_str(), native<T>(), space.id(), H5P_DEFAULT, properties.id(),
                H5P_DEFAULT),
          place};
}

template <class T>
std::uint64_t Group::reserve(const std::string& name, const Shape& shape) {
  const Properties properties(check(place_of(name), "create", H5Pcreate, H5P_DATASET_CREATE));
  check(place_of(name), "create", H5Pset_fill_time, properties.id(), H5D_FILL_TIME_NEVER);
  return create<T>(name, shape, properties).offset().value();
}

template <class T>
std::vector<std::uint64_t> Group::reserve_chunks(const std::string& name, const Shape& shape, std::size_t rows) {
  const std::string place = place_of(name);
  std::vector<hsize_t> chunk(shape.begin(), shape.end());
  chunk.front() = rows;
  const Properties properties(check(place, "create", H5Pcreate, H5P_DATASET_CREATE));
  check(place, "create", H5Pset_chunk, properties.id(), static_cast<int>(chunk.size()), chunk.data());
  check(place, "create", H5Pset_fletcher32, properties.id());
  return create<T>(name, shape, properties).chunks(rows);
}

template bool Dataset::holds<std::uint8_t>() const;
template bool Dataset::holds<float>() const;
template std::vector<std::uint8_t> Dataset::read() const;
template std::vector<std::int64_t> Dataset::read() const;
template std::vector<float> Dataset::read() const;
template void Dataset::read_rows(std::size_t, std::size_t, std::span<std::uint8_t>) const;
template void Dataset::read_rows(std::size_t, std::size_t, std::span<std::int64_t>) const;
template void Dataset::read_rows(std::size_t, std::size_t, std::span<float>) const;
template void Group::write(const std::string&, const Shape&, std::span<const std::uint8_t>);
template void Group::write(const std::string&, const Shape&, std::span<const std::int64_t>);
template void Group::write(const std::string&, const Shape&, std::span<const float>);
template std::uint64_t Group::reserve<std::uint8_t>(const std::string&, const Shape&);
template std::uint64_t Group::reserve<std::uint16_t>(const std::string&, const Shape&);
template std::uint64_t Group::reserve<std::uint32_t>(const std::string&, const Shape&);
template std::uint64_t Group::reserve<std::int32_t>(const std::string&, const Shape&);
template std::uint64_t Group::reserve<float>(const std::string&, const Shape&);
template std::uint64_t Group::reserve<std::uint64_t>(const std::string&, const Shape&);
template std::vector<std::uint64_t> Group::reserve_chunks<std::uint8_t>(const std::string&, const Shape&, std::size_t);

namespace {

hid_t open(const std::string& path, unsigned mode) {
  const FileDescriptor file = open_to_read(path);  // HDF5 would block forever on a named pipe
  // Checks before HDF5 reads the structure, because HDF5 crashes on some damage.
  if (const auto checksums = BlockChecksums::find(file, path)) checksums->check_structure(file);
  silence_this_thread();
  const CrashNote note(path);
  if (H5Fis_hdf5(path.c_str()) <= 0) fail("{}: not an HDF5 file", path);
  const Properties access(check(path, "open", H5Pcreate, H5P_FILE_ACCESS));
  check(path, "open", H5Pset_file_locking, access.id(), false, true);
  return check(path, "open", H5Fopen, path.c_str(), mode, access.id());
}

hid_t create(const std::string& path) {
  constexpr std::size_t kGrowth = 1 << 20;  // bytes
  const Properties access(check(path, "create", H5Pcreate, H5P_FILE_ACCESS));
  check(path, "create", H5Pset_fapl_core, access.id(), kGrowth, false);
  // With creation order tracked, attributes may exceed 64 KiB: many class names. (The formats from 1.8 on allow it as
  // well, but 1.10 then produces a memory image with a wrong checksum.)
  const Properties creation(check(path, "create", H5Pcreate, H5P_FILE_CREATE));
  keep_no_times(creation);
  check(path, "create", H5Pset_attr_creation_order, creation.id(), H5P_CRT_ORDER_TRACKED);
  return check(path, "create", H5Fcreate, path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id());
}

Group root_of(const std::string& path, hid_t file) {
  return {check(path, "open", H5Gopen2, file, "/", H5P_DEFAULT), path + ": /"};
}

}  // namespace

File::File(const std::filesystem::path& path) : path_(path.string()), handle_(open(path_, H5F_ACC_RDONLY)) {}

Group File::root() const {
  return root_of(path_, handle_.id());
}

NewFile::NewFile(const std::filesystem::path& path) : path_(path.string()), handle_(create(path_)) {}

Group NewFile::root() {
  return root_of(path_, handle_.id());
}

std::vector<std::byte> NewFile::image() {
  check(path_, "write", H5Fflush, handle_.id(), H5F_SCOPE_GLOBAL);
  const auto size = check(path_, "write", H5Fget_file_image, handle_.id(), nullptr, 0u);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  check(path_, "write", H5Fget_file_image, handle_.id(), bytes.data(), bytes.size());
  return bytes;
}

FileToExtend::FileToExtend(const std::filesystem::path& path)
    : path_(path.string()), handle_(open(path_, H5F_ACC_RDWR)) {}

Group FileToExtend::root() {
  return root_of(path_, handle_.id());
}

void FileToExtend::close() {
  check(path_, "write", H5Fflush, handle_.id(), H5F_SCOPE_GLOBAL);
  handle_ = Handle<H5Fclose>(H5I_INVALID_HID);
}

}  // namespace annulus::hdf5
