#include "models/rewrites/synchronize.h"

#include "kernels/base/error.h"

namespace annulus {

Graph synchronize_batch_norms(const Graph& graph) {
  Graph synchronized = graph.without_nodes();
  bool any = false;
  for (Node node : graph.nodes()) {
    if (auto* norm = std::get_if<BatchNorm>(&node.operation)) any = norm->synchronized = true;
    synchronized.add(std::move(node));
  }
  if (!any) fail("--sync-batch-norm: this model has no batch norm; leave it out");
  return synchronized;
}

}  // namespace annulus
