#include "src/job/agreement.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

constexpr std::size_t kShort = 60;  // characters; the longest value printed in an error message

std::uint64_t hash(const std::string& text, std::uint64_t seed) {
  return hash_bytes(std::as_bytes(std::span(text)), seed);
}

bool same(const std::vector<std::uint64_t>& values) {
  return std::ranges::all_of(values, [&](std::uint64_t value) { return value == values.front(); });
}

bool printable(const std::string& value) {
  return value.size() <= kShort && value.find('\n') == std::string::npos;
}

// "rank 1", "ranks 1, 2 and 5"
std::string name_ranks(std::vector<std::size_t> ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const std::size_t last = ranks.back();
  ranks.pop_back();
  return fmt::format("ranks {} and {}", fmt::join(ranks, ", "), last);
}

// Returns each value that differs from rank 0's, in order of appearance, and the ranks that have it.
using Dissent = std::pair<std::string, std::vector<std::size_t>>;
std::vector<Dissent> dissents(const std::vector<std::string>& values) {
  std::vector<Dissent> found;
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    const auto known = std::ranges::find(found, values[rank], &Dissent::first);
    if (known == found.end())
      found.push_back({values[rank], {rank}});
    else
      known->second.push_back(rank);
  }
  return found;
}

std::string complaint(const std::string& field, const std::vector<std::string>& values) {
  const auto others = dissents(values);
  if (others.empty())
    return fmt::format("the ranks compare different fields: are they from the same build? (from {})", field);
  const bool readable = std::ranges::all_of(values, printable);
  std::vector<std::string> texts;
  for (const auto& [value, ranks] : others) texts.push_back((readable ? value + " on " : "") + name_ranks(ranks));
  if (readable)
    return fmt::format("the ranks are inconsistent: {} is {} on rank 0, but {}", field, values[0],
                       fmt::join(texts, ", "));
  return fmt::format("the ranks are inconsistent: {} differs between rank 0 and {}", field, fmt::join(texts, ", "));
}

}  // namespace

void Agreement::check() const {
  std::uint64_t all = 0;
  for (const Field& field : fields_) all = hash(field.value, hash(field.name, all));
  if (same(world_.gather(all))) return;
  // Ranks with another version may have other fields, but the version comes first.
  for (const Field& field : fields_)
    if (!same(world_.gather(hash(field.value, hash(field.name, 0))))) report(field);
  fail("the ranks are inconsistent, but not in any field that this one compares");
}

void Agreement::report(const Field& field) const {
  const auto values = world_.gather_texts(field.value);  // on rank 0
  std::string text = world_.root() ? complaint(field.name, values) : "";
  world_.broadcast(text);
  fail("{}", text);
}

}  // namespace annulus
