#include "src/bench/broadcast.h"

#include <span>
#include <vector>

namespace annulus {
namespace {

class Broadcast final : public AllReduce {
 public:
  Broadcast(const World& world, Device& device)
      : AllReduce({.description = "MPI_Bcast from rank 0", .order = "none"}), world_(world), device_(device) {}

  DeviceView allocate(std::size_t bytes, Memory /*memory*/) override {
    return arrays_.emplace_back(device_.allocate(bytes)).view();
  }

  Ticket enqueue(DeviceView values, const Request& /*request*/) override {
    if (device_.info().shares_host_memory) {
      world_.broadcast({values.address, values.bytes});
      return 0;
    }
    std::vector<std::byte> host(values.bytes);
    if (world_.root()) device_.download(values, host);
    world_.broadcast(host);
    if (!world_.root()) device_.upload(host, values);
    return 0;
  }
  void wait(Ticket /*ticket*/) override {}

 private:
  const World& world_;
  Device& device_;
  std::vector<Buffer> arrays_;
};

}  // namespace

std::unique_ptr<AllReduce> make_broadcast(const World& world, Device& device) {
  return std::make_unique<Broadcast>(world, device);
}

}  // namespace annulus
