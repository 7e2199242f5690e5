#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "src/torch/annulus_torch/communicator.h"
#include "src/torch/annulus_torch/process_group.h"

namespace {

using annulus::ProcessGroup;

c10::intrusive_ptr<ProcessGroup> create(int rank, int size, const std::vector<int>& members,
                                        std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ProcessGroup>(rank, size, members, timeout);
}

pybind11::tuple tuple_of(const annulus::Place& place) {
  return pybind11::make_tuple(place.rank, place.size);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module::import("torch.distributed");  // which defines the base class
  using released = pybind11::call_guard<pybind11::gil_scoped_release>;
  pybind11::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(module, "ProcessGroup")
      .def("description", &ProcessGroup::description);
  module.def("create", &create, released());
  module.def("in_job", [] { return tuple_of(annulus::in_job()); });
  module.def("on_node", [] { return tuple_of(annulus::on_node()); });
  module.def("broadcast", &annulus::broadcast_text, released());
  module.def(
      "finalize",
      [] {
        ProcessGroup::free_all();
        annulus::finalize();
      },
      released());
}
