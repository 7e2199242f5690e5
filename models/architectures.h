#pragma once

#include "models/zoo.h"

namespace annulus {

Graph mlp(const Task& task);
Graph lenet(const Task& task);
Graph cnn(const Task& task);
Graph resnet20(const Task& task);
Graph resnet50(const Task& task);

}  // namespace annulus
