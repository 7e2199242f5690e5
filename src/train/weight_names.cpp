#include "src/train/weight_names.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace annulus {
namespace {

// Without the parts that wrappers add: "a" of "module.a", "a.b" of "a._orig_mod.b".
std::string unwrapped(std::string name) {
  for (const std::string part : {"module.", "_orig_mod."}) {
    for (std::size_t at = name.find(part); at != name.npos; at = name.find(part, at)) {
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, part.size());
      else
        ++at;
    }
  }
  return name;
}

// The prefix, which may be empty, behind which most of the network's names are.
std::pair<std::string, std::size_t> best_prefix(const std::vector<std::string>& names,
                                                const std::set<std::string>& network) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : names) {
    for (std::size_t begin = 0, dot = 0; dot != name.npos; begin = dot + 1) {
      if (network.contains(name.substr(begin))) ++counts[name.substr(0, begin)];
      dot = name.find('.', begin);
    }
  }
  std::pair<std::string, std::size_t> best;
  for (const auto& [prefix, count] : counts)
    if (count > best.second) best = {prefix, count};
  return best;
}

WeightNames unchanged(const std::vector<std::string>& file) {
  WeightNames names;
  for (const std::string& name : file) names.stored[name] = name;
  return names;
}

}  // namespace

WeightNames match_names(const std::vector<std::string>& file, const std::vector<std::string>& network) {
  const std::set<std::string> wanted(network.begin(), network.end());
  const auto direct =
      static_cast<std::size_t>(std::ranges::count_if(file, [&](const auto& name) { return wanted.contains(name); }));
  std::vector<std::string> bare;
  std::ranges::transform(file, std::back_inserter(bare), unwrapped);
  const auto [prefix, count] = best_prefix(bare, wanted);
  if (count <= direct || 2 * count <= wanted.size()) return unchanged(file);
  WeightNames found;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const std::string name = bare[i].starts_with(prefix) ? bare[i].substr(prefix.size()) : bare[i];
    if (!found.stored.emplace(name, file[i]).second) return unchanged(file);
    if (found.added.empty() && wanted.contains(name)) found.added = file[i].substr(0, file[i].size() - name.size());
  }
  return found;
}

}  // namespace annulus
