#include "kernels/cpu/cpu_device.h"
#include "kernels/error.h"

namespace annulus {

std::unique_ptr<Device> make_device(const std::string& name, int threads) {
  if (name != "cpu") fail("there is no device \"{}\": known is cpu", name);
  return std::make_unique<cpu::CpuDevice>(threads > 0 ? threads : processors_allowed());
}

}  // namespace annulus
