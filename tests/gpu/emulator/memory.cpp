#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_device.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated {

std::size_t device_bytes() {
  static const char* const mebibytes = std::getenv("ANNULUS_EMULATED_MEMORY");
  return mebibytes != nullptr ? std::strtoull(mebibytes, nullptr, 10) << 20 : std::size_t{8} << 30;
}

namespace {

// A piece of memory that CUDA knows of.
struct Piece {
  enum class Kind { device, opened, pinned, registered };

  Kind kind;
  std::size_t bytes;
  int device;
  MemoryName name{};  // except registered ones
  int opened = 0;     // number of times, if it is another process's

  bool on_device() const { return kind == Kind::device || kind == Kind::opened; }
};

class Pieces {
 public:
  void add(const void* address, const Piece& piece) {
    const std::lock_guard lock(mutex_);
    pieces_[begin(address)] = piece;
  }

  // Removes and returns the piece that begins there.
  std::optional<Piece> take(const void* address, Piece::Kind kind) {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(begin(address));
    if (found == pieces_.end() || found->second.kind != kind) return std::nullopt;
    return remove(found);
  }

  std::optional<Piece> at(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(begin(address));
    return found == pieces_.end() ? std::nullopt : std::optional(found->second);
  }

  // Returns the piece that overlaps these bytes, and whether it contains all of them.
  std::optional<Piece> around(const void* address, std::size_t bytes, bool& whole) {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t from = begin(address);
    auto found = pieces_.lower_bound(from + std::max<std::size_t>(bytes, 1));
    if (found == pieces_.begin()) return std::nullopt;
    --found;
    if (found->first + found->second.bytes <= from) return std::nullopt;
    whole = found->first <= from && from + bytes <= found->first + found->second.bytes;
    return found->second;
  }

  std::size_t on_device(int device) {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& [address, piece] : pieces_)
      if (piece.kind == Piece::Kind::device && piece.device == device) bytes += piece.bytes;
    return bytes;
  }

  // Counts another opening of another process's memory; null if it has not been opened yet.
  void* reopen(const MemoryName& name) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, piece] : pieces_) {
      if (piece.kind != Piece::Kind::opened) continue;
      if (piece.name.process != name.process || piece.name.offset != name.offset) continue;
      ++piece.opened;
      return reinterpret_cast<void*>(address);
    }
    return nullptr;
  }

  // Counts one opening less; returns the piece if it was the last.
  std::optional<Piece> close(const void* address, bool& known) {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(begin(address));
    known = found != pieces_.end() && found->second.kind == Piece::Kind::opened;
    if (!known || --found->second.opened > 0) return std::nullopt;
    return remove(found);
  }

  // Returns the piece that was here and is no more.
  std::optional<Piece> former(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto after = former_.upper_bound(begin(address));
    if (after == former_.begin()) return std::nullopt;
    const auto& [from, piece] = *std::prev(after);
    return begin(address) - from < piece.bytes ? std::optional(piece) : std::nullopt;
  }

 private:
  using Map = std::map<std::uintptr_t, Piece>;

  static std::uintptr_t begin(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

  Piece remove(Map::iterator found) {
    const Piece piece = found->second;
    if (piece.kind != Piece::Kind::registered) former_.insert(*found);
    pieces_.erase(found);
    return piece;
  }

  std::mutex mutex_;
  Map pieces_;
  Map former_;  // whose addresses are not used again
};

Pieces& pieces() {
  static auto* const all = new Pieces;
  return *all;
}

enum class Place { pageable, pinned, device, broken };  // broken: partly in one of the others

Place place(const void* address, std::size_t bytes) {
  bool whole = false;
  const auto piece = pieces().around(address, bytes, whole);
  if (!piece) return Place::pageable;
  if (!whole) return Place::broken;
  return piece->on_device() ? Place::device : Place::pinned;
}

bool fits(cudaMemcpyKind kind, Place to, Place from) {
  if (to == Place::broken || from == Place::broken) return false;
  const bool to_device = to == Place::device, from_device = from == Place::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// CUDA copies pageable memory to memory of its own before it returns, and waits for copies to pageable memory.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const Place target = place(to, bytes), source = place(from, bytes);
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return remember(cudaErrorInvalidMemcpyDirection);
  if (!fits(kind, target, source)) return remember(cudaErrorInvalidValue);
  const bool captured = resolve(stream).capture != nullptr;
  if (source == Place::pageable && !captured) {
    const auto* const first = static_cast<const std::byte*>(from);
    const cudaError_t result = enqueue(stream, [staged = std::vector(first, first + bytes), to] {
      stream_races::write(accessible(to), staged.size());
      std::memcpy(accessible(to), staged.data(), staged.size());
    });
    if (result != cudaSuccess) return result;
  } else {
    const cudaError_t result = enqueue(stream, [=] {
      stream_races::read(accessible(from), bytes);
      stream_races::write(accessible(to), bytes);
      std::memmove(accessible(to), accessible(from), bytes);
    });
    if (result != cudaSuccess) return result;
  }
  return target == Place::pageable && !captured ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t allocate(void** address, std::size_t bytes, Piece::Kind kind) {
  *address = nullptr;
  if (unsafe_while_capturing()) return remember(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return cudaSuccess;
  if (bytes > device_bytes() - pieces().on_device(current_device())) return remember(cudaErrorMemoryAllocation);
  MemoryName name;
  void* const memory = map_shared(bytes, name);
  if (memory == nullptr) return remember(cudaErrorMemoryAllocation);
  *address = kind == Piece::Kind::device ? device_address(memory) : memory;
  pieces().add(*address, {kind, bytes, current_device(), name});
  return cudaSuccess;
}

// Waits for the device first, as CUDA does.
cudaError_t release(void* address, Piece::Kind kind) {
  if (address == nullptr) return cudaSuccess;
  if (unsafe_while_capturing()) return remember(cudaErrorStreamCaptureUnsupported);
  synchronize_device();
  const auto piece = pieces().take(address, kind);
  if (!piece) return remember(cudaErrorInvalidValue);
  unmap_shared(accessible(address), piece->name, true);
  return cudaSuccess;
}

}  // namespace

bool device_reaches(const void* address, std::size_t bytes) {
  const Place where = place(address, bytes);
  return where == Place::device || where == Place::pinned;
}

const char* reason_of_fault(const void* address) {
  const AddressRange range = range_of(address);
  if (range == AddressRange::none) return nullptr;
  if (range == AddressRange::another_process) return "memory of another process that this one has not opened";
  bool whole = false;
  if (range == AddressRange::device_addresses && pieces().around(address, 1, whole))
    return "memory of a device, which the host cannot access";
  auto former = pieces().former(address);
  if (!former && range == AddressRange::memory) former = pieces().former(device_address(const_cast<void*>(address)));
  if (!former) return "no memory";
  return former->kind == Piece::Kind::opened ? "memory of another process that this one has closed" : "freed memory";
}

}  // namespace emulated

using emulated::Piece;
using emulated::pieces;
using emulated::remember;

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  return emulated::allocate(address, bytes, Piece::Kind::device);
}

cudaError_t cudaFree(void* address) {
  return emulated::release(address, Piece::Kind::device);
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  return emulated::allocate(address, bytes, Piece::Kind::pinned);
}

cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return cudaHostAlloc(address, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* address) {
  return emulated::release(address, Piece::Kind::pinned);
}

// Whole pages, which may not belong to another piece.
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  constexpr std::size_t kPage = 4096;
  if (address == nullptr || bytes == 0) return remember(cudaErrorInvalidValue);
  const std::size_t before = reinterpret_cast<std::uintptr_t>(address) % kPage;
  const std::size_t pages = (before + bytes + kPage - 1) / kPage;
  bool whole = false;
  if (pieces().around(static_cast<std::byte*>(address) - before, pages * kPage, whole))
    return remember(cudaErrorHostMemoryAlreadyRegistered);
  pieces().add(address, {Piece::Kind::registered, bytes, emulated::current_device()});
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  emulated::synchronize_device();
  if (!pieces().take(address, Piece::Kind::registered)) return remember(cudaErrorHostMemoryNotRegistered);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (emulated::place(host, 1) != emulated::Place::pinned) return remember(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  bool whole = false;
  const auto piece = pieces().around(address, 1, whole);
  void* const pointer = const_cast<void*>(address);
  if (!piece)
    *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, pointer};
  else if (piece->on_device())
    *attributes = {cudaMemoryTypeDevice, piece->device, pointer, nullptr};
  else
    *attributes = {cudaMemoryTypeHost, piece->device, pointer, pointer};
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = emulated::device_bytes();
  *free = *total - pieces().on_device(emulated::current_device());
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return emulated::copy(to, from, bytes, kind, stream);
}

// As in CUDA, does not wait between device addresses.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t result = emulated::copy(to, from, bytes, kind, nullptr);
  if (result != cudaSuccess) return result;
  const bool on_device =
      emulated::place(to, bytes) == emulated::Place::device && emulated::place(from, bytes) == emulated::Place::device;
  return on_device ? cudaSuccess : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return emulated::copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!emulated::device_reaches(to, bytes)) return remember(cudaErrorInvalidValue);
  return emulated::enqueue(stream, [=] {
    emulated::stream_races::write(emulated::accessible(to), bytes);
    std::memset(emulated::accessible(to), value, bytes);
  });
}

// As in CUDA, does not wait for device memory.
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  const cudaError_t result = cudaMemsetAsync(to, value, bytes, nullptr);
  if (result != cudaSuccess || emulated::place(to, bytes) == emulated::Place::device) return result;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const auto piece = pieces().at(address);
  if (!piece || piece->kind != Piece::Kind::device) return remember(cudaErrorInvalidValue);
  static_assert(sizeof(piece->name) <= sizeof(*handle));
  *handle = {};
  std::memcpy(handle, &piece->name, sizeof(piece->name));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  emulated::MemoryName name;
  std::memcpy(&name, &handle, sizeof(name));
  if (name.process == getpid()) return remember(cudaErrorDeviceUninitialized);
  if (std::getenv("ANNULUS_EMULATED_APART") != nullptr) return remember(cudaErrorMapBufferObjectFailed);
  *address = pieces().reopen(name);
  if (*address != nullptr) return cudaSuccess;
  void* const memory = emulated::open_shared(name);
  if (memory == nullptr) return remember(cudaErrorMapBufferObjectFailed);
  *address = emulated::device_address(memory);
  pieces().add(*address, {Piece::Kind::opened, name.bytes, emulated::current_device(), name, 1});
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  bool known = false;
  const auto last = pieces().close(address, known);
  if (!known) return remember(cudaErrorInvalidValue);
  if (!last) return cudaSuccess;
  emulated::synchronize_device();
  emulated::unmap_shared(emulated::accessible(address), last->name, false);
  return cudaSuccess;
}
