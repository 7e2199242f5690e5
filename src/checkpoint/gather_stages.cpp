#include "src/checkpoint/gather_stages.h"

#include <array>
#include <set>

namespace annulus {
namespace {

using Visit = std::function<void(const CheckpointArray&)>;

// An array is sent as four lists, each after the size. An empty group follows after the last array.
template <class Values>
void send(const Channel& channel, const Values& values) {
  const std::size_t size = values.size();
  channel.send(std::as_bytes(std::span(&size, 1)), 0);
  channel.send(std::as_bytes(std::span(values)), 0);
}

template <class Values>
Values receive(const Channel& channel, int from) {
  std::size_t size = 0;
  channel.receive(std::as_writable_bytes(std::span(&size, 1)), from);
  Values values;
  values.resize(size);
  channel.receive(std::as_writable_bytes(std::span(values)), from);
  return values;
}

void send_all(const Channel& channel, const ArraySource& own) {
  own.for_each([&](const CheckpointArray& array) {
    send(channel, array.group);
    send(channel, array.name);
    send(channel, array.shape);
    send(channel, array.values);
  });
  send(channel, std::string_view());
}

void receive_all(const Channel& channel, int from, const Visit& visit) {
  for (auto group = receive<std::string>(channel, from); !group.empty(); group = receive<std::string>(channel, from)) {
    const auto name = receive<std::string>(channel, from);
    const auto shape = receive<Shape>(channel, from);
    visit({group, name, shape, receive<std::vector<float>>(channel, from)});
  }
}

}  // namespace

ArraySource gather_stages(const World& stages, const ArraySource& own) {
  const Channel channel = stages.channel();
  std::array sums{static_cast<double>(own.arrays), static_cast<double>(own.values)};
  stages.sum(sums);
  if (!stages.root()) {
    send_all(channel, own);
    return {};
  }
  const auto for_each = [channel, own, last = stages.size() - 1](const Visit& visit) {
    std::set<std::string> visited;  // the embedding that the last stage shares is among the first stage's, too
    const auto visit_new = [&](const CheckpointArray& array) {
      if (visited.insert(fmt::format("{}/{}", array.group, array.name)).second) visit(array);
    };
    for (int stage = last; stage > 0; --stage) receive_all(channel, stage, visit_new);  // in the order of backward
    own.for_each(visit_new);
  };
  return {static_cast<std::size_t>(sums[0]), static_cast<std::size_t>(sums[1]), for_each};
}

}  // namespace annulus
