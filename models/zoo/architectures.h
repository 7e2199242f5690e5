#pragma once

#include "models/zoo/zoo.h"

namespace annulus {

Graph mlp(const Task& task);
Graph lenet(const Task& task);
Graph cnn(const Task& task);
Graph resnet20(const Task& task);
Graph resnet56(const Task& task);
Graph resnet18(const Task& task);
Graph resnet34(const Task& task);
Graph resnet50(const Task& task);
Graph resnet101(const Task& task);
Graph resnet152(const Task& task);
Graph airbench94(const Task& task);
Graph alexnet(const Task& task);
Graph vgg16(const Task& task);
Graph inception_v3(const Task& task);
Graph densenet121(const Task& task);
Graph mobilenet_v3_large(const Task& task);
Graph vit_tiny(const Task& task);
Graph vit_s_16(const Task& task);
Graph vit_b_16(const Task& task);
Graph gpt(const Task& task, const GptSize& size);

}  // namespace annulus
