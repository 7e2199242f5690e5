#pragma once

#include "src/options.h"

namespace annulus {

// Prints what the zoo's models cost, or one of them layer by layer. Layers are those that are run: what fusion has
// made of the model. Throws Error where there is no model of that name, or where it does not take such images.
void list_models(const ModelsOptions& options);

}  // namespace annulus
