#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "src/torch/annulus_torch/communicator.h"
#include "src/torch/annulus_torch/process_group.h"

using annulus::ProcessGroup;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module::import("torch.distributed");  // which defines the base class
  using released = pybind11::call_guard<pybind11::gil_scoped_release>;
  pybind11::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(module, "ProcessGroup")
      .def("description", &ProcessGroup::description)
      .def("use", &ProcessGroup::use);
  module.def("by_mpi", &ProcessGroup::by_mpi, released());
  module.def("on_node", &ProcessGroup::on_node, released());
  module.def("place_in_job", &annulus::in_job, released());
  module.def("place_on_node", &annulus::on_node, released());
  module.def("leave_all", &ProcessGroup::leave_all, released());
  module.def("broadcast", &annulus::broadcast_text, released());
  module.def(
      "finalize",
      [] {
        ProcessGroup::free_all();
        annulus::finalize();
      },
      released());
}
