#pragma once

#include <map>
#include <string>
#include <vector>

namespace annulus {

// The names under which a file stores a network's tensors.
struct WeightNames {
  std::map<std::string, std::string> stored;  // by the name without what wrappers add
  std::string added;                          // for the user: what they add; empty: nothing
};

// Removes from a file's names what wrappers add: the parts `module` (DistributedDataParallel) and `_orig_mod`
// (torch.compile) anywhere, and a prefix of most names, such as `model.` or Hugging Face's `transformer.`. Names stay
// as they are unless more of `network`'s names, and more than half of them, are found by that.
WeightNames match_names(const std::vector<std::string>& file, const std::vector<std::string>& network);

}  // namespace annulus
