#include "collectives/host/message_parameter_server.h"
#include "collectives/host/shared_memory_parameter_server.h"
#include "collectives/parameter_server.h"
#include "kernels/base/error.h"

namespace annulus {

std::unique_ptr<ParameterServer> make_parameter_server(const World& world, const std::vector<Range>& own,
                                                       std::size_t count, std::size_t pending) {
  if (world.one_node()) try {
      return std::make_unique<SharedMemoryParameterServer>(world, own, count, pending);
    } catch (const Error&) {  // too little shared memory, on all ranks
      if (world.interrupted()) throw;
    }
  return std::make_unique<MessageParameterServer>(world, own, count, pending);
}

}  // namespace annulus
