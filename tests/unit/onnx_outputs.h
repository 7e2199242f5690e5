#pragma once

#include <vector>

#include "models/network/model.h"
#include "tests/unit/onnx_model.h"
#include "tests/unit/test_device.h"

namespace annulus::test {

// The first output y of a file's network for `batch` images, whose pixels, 0 to 255 and channels last, are its input x.
inline std::vector<float> outputs(const OnnxFile& file, const std::vector<std::uint8_t>& pixels,
                                  std::size_t batch = 1) {
  Task task = exported_task(file);
  task.mean.assign(task.image.channels, 0);
  task.stddev.assign(task.image.channels, 1.0f / 255);
  ImportedNetwork network = read_network(file, task);
  const auto device = make_device(1);
  annulus::Model model(*device, network.graph, Mode::training, batch);
  for (const Parameter& p : model.parameters().all())
    if (const auto values = network.values.find(p.name); values != network.values.end())
      device->write(values->second, p.spec, model.parameters().weight(p));
  model.parameters().weights_changed();
  Network& planned = model.network(Mode::inference, batch);
  const std::vector<std::int32_t> labels(batch, 0);
  planned.load(pixels, {.classes = labels});
  planned.forward();
  const Value logits = model.graph().nodes().back().inputs[0];
  std::vector<float> found(elements(planned.spec(logits).shape));
  device->read(planned.spec(logits), planned.value(logits), found);
  return found;
}

}  // namespace annulus::test
