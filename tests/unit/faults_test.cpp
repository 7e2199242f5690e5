#include "src/job/faults.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "models/network/model.h"
#include "models/zoo/zoo.h"

namespace annulus {

TEST_CASE("faults are parsed") {
  const Fault kill = parse_fault("kill:rank=1,step=30");
  CHECK(kill.kind == Fault::Kind::kill);
  CHECK(kill.rank == 1);
  CHECK(kill.step == 30);
  const Fault delay = parse_fault("delay:rank=0,seconds=0.01");
  CHECK(delay.kind == Fault::Kind::delay);
  CHECK(delay.rank == 0);
  CHECK_FALSE(delay.step);
  CHECK(delay.seconds == 0.01);
  CHECK(parse_fault("hang:step=5,rank=2").step == 5);
  CHECK(kill.at.empty());
  CHECK(parse_fault("kill:rank=0,step=8,at=renamed").at == "renamed");
  CHECK(parse_fault("delay:rank=0,step=0,seconds=1,at=claimed").at == "claimed");
  CHECK(parse_fault("wrong:rank=0,step=8").kind == Fault::Kind::wrong);
  const Fault flip = parse_fault("flip:rank=1,step=7,in=bucket,bucket=2,element=99,bit=31,times=2");
  CHECK(flip.in == "bucket");
  CHECK(flip.bucket == 2);
  CHECK(flip.element == 99);
  CHECK(flip.bit == 31);
  CHECK(flip.times == 2);
}

TEST_CASE("errors in a fault's text are reported") {
  const auto [text, complaint] = GENERATE(table<std::string, std::string>({
      {"", "must begin with kill:"},
      {"melt:rank=1,step=1", "must begin with kill:"},
      {"kill", "needs rank=N"},
      {"kill:rank=-1,step=1", "needs rank=N"},
      {"kill:rank=1", "needs step=N"},
      {"kill:rank=1,step=1,seconds=1", "unknown key 'seconds'"},
      {"flip:rank=1,step=", "'' is not"},
      {"flip:rank=1,step=1x", "'1x' is not"},
      {"delay:rank=1,step=1", "needs seconds=S"},
      {"delay:rank=1,seconds=-1", "needs seconds=S"},
      {"hang:rank", "'rank' has no value"},
      {"hang:rank=0,step=1,at=renamed", "unknown key 'at'"},
      {"kill:rank=0,step=1,at=lunch", "unknown stage 'lunch'"},
      {"flip:rank=0,step=1,in=vain", "unknown array 'vain'"},
      {"flip:rank=0,step=1,bit=32", "a float has bits 0 to 31"},
      {"hang:rank=0,step=1,bit=3", "unknown key 'bit'"},
  }));
  CHECK_THROWS_WITH(parse_fault(text), Catch::StartsWith(text) && Catch::Contains(complaint));
}

namespace {

std::vector<std::byte> weights(Model& model) {
  std::vector<std::byte> bytes(model.parameters().weights().bytes);
  model.device().download(model.parameters().weights(), bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a flip inverts one bit, on its rank and step only") {
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model("mlp", {{28, 28, 1}, {0.5f}, {0.5f}, 10}), Mode::training, 4);
  model.parameters().initialize(1);
  const auto before = weights(model);
  std::vector faults = {parse_fault("flip:rank=1,step=7")};
  inject(faults, 0, 7, {model});
  inject(faults, 1, 6, {model});
  CHECK(weights(model) == before);
  inject(faults, 1, 7, {model});
  const auto after = weights(model);
  int bits = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    bits += __builtin_popcount(std::to_integer<unsigned>(before[i] ^ after[i]));
  CHECK(bits == 1);
}

TEST_CASE("a flip strikes a given number of times, in the sum of one bucket") {
  const auto device = make_device("cpu", 1);
  std::vector<float> values(4, 1.0f);
  std::vector faults = {parse_fault("flip:rank=1,step=7,in=bucket,bucket=2,element=3,bit=31,times=2")};
  const auto strike = [&](std::size_t bucket, int rank, std::uint64_t step) {
    inject_into(view_of(values), bucket, faults, rank, step, *device);
    return values[3] < 0;
  };
  CHECK_FALSE(strike(1, 1, 7));
  CHECK_FALSE(strike(2, 0, 7));
  CHECK_FALSE(strike(2, 1, 6));
  CHECK(strike(2, 1, 7));
  CHECK_FALSE(strike(2, 1, 7));  // back again
  CHECK_FALSE(strike(2, 1, 7));  // no more
  CHECK(values == std::vector<float>(4, 1.0f));
}

}  // namespace annulus
