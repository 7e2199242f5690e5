#include "src/data/vocabulary.h"

#include "kernels/base/error.h"

namespace annulus {

void read_vocabulary(const hdf5::Group& root, DatasetInfo& info) {
  info.vocabulary = root.integer("vocabulary");
  if (info.vocabulary == 0 || info.vocabulary > kMostTokens)
    fail("{} attribute 'vocabulary': {} tokens; supported are 1 to {}", root.place(), info.vocabulary, kMostTokens);
  info.mask_token = root.has_attribute("mask_token") ? root.integer("mask_token") : info.vocabulary;
  if (info.mask_token >= kMostTokens)
    fail("{} attribute 'mask_token': {}; at most {} is supported", root.place(), info.mask_token, kMostTokens - 1);
  if (root.has_attribute("tokenizer_data")) info.tokenizer = root.string("tokenizer_data");
}

}  // namespace annulus
