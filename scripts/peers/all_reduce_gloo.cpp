// Gloo over loopback TCP, its transport on one machine. NAME chooses: gloo-ring (used by PyTorch), gloo-bcube, or
// gloo-halving (halving-doubling, of Gloo's older interface).
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <filesystem>
#include <map>

#include "forked_ranks.h"

namespace {

void gloo_sum(void* to, const void* a, const void* b, std::size_t count) {
  gloo::sum<float>(to, a, b, count);
}

auto newer(const std::shared_ptr<gloo::Context>& context, gloo::AllreduceOptions::Algorithm algorithm) {
  return [=, tag = 0u](float* values, std::size_t count) mutable {
    gloo::AllreduceOptions call(context);
    call.setAlgorithm(algorithm);
    call.setOutput(values, count);
    call.setReduceFunction(gloo_sum);
    call.setTag(tag++);
    gloo::allreduce(call);
  };
}

// Plans once for each size, as its interface requires; the untimed check makes the plan.
auto halving_doubling(const std::shared_ptr<gloo::Context>& context) {
  using Plan = gloo::AllreduceHalvingDoubling<float>;
  return [context, plans = std::map<std::size_t, std::shared_ptr<Plan>>()](float* values, std::size_t count) mutable {
    std::shared_ptr<Plan>& plan = plans[count];
    if (!plan) plan = std::make_shared<Plan>(context, std::vector<float*>{values}, static_cast<int>(count));
    plan->run();
  };
}

}  // namespace

int main(int argc, char** argv) {
  const peer::Options options = peer::parse(argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "gloo-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 2;
  const int result = peer::run_forked(options.ranks, false, [&](peer::Rank& rank) {
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank.rank, rank.ranks);
    context->connectFullMesh(store, device);
    if (options.name == "gloo-ring")
      rank.sum = newer(context, gloo::AllreduceOptions::Algorithm::RING);
    else if (options.name == "gloo-bcube")
      rank.sum = newer(context, gloo::AllreduceOptions::Algorithm::BCUBE);
    else if (options.name == "gloo-halving")
      rank.sum = halving_doubling(context);
    else
      std::_Exit(2);
    rank.head_start = 200e-6;  // its ranks sleep while they wait
    peer::run(rank, options, peer::huge_buffer(options.largest()));
    rank.barrier();
  });
  std::filesystem::remove_all(folder);
  return result;
}
