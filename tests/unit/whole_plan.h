#pragma once

#include <set>

#include "src/import/source.h"

namespace annulus::test {

// A plan whose missing classes have been collected.
inline SourcePlan whole_plan(const SourceFormat& format, const SourceFolders& folders) {
  SourcePlan plan = format.plan(folders);
  std::set<std::string> classes(plan.classes.begin(), plan.classes.end());
  for (std::size_t piece = 0; plan.classes_in_pieces && piece < plan.splits[0].pieces.size(); ++piece)
    for (const std::string& name : format.find_classes(folders, plan, piece, [](std::size_t) { return true; }))
      classes.insert(name);
  if (plan.classes_in_pieces) plan.classes.assign(classes.begin(), classes.end());
  return plan;
}

}  // namespace annulus::test
