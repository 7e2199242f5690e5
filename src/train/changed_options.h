#pragma once

#include <string>

namespace annulus {

// Returns the options whose values differ between two configurations (lines key=value, as in OUT/config.toml), in the
// order of `now`: "epochs 10 -> 20, schedule step:3,6 -> cosine"; empty if there are none. Options that only one of
// them has are left out: the version of the program may differ. Options of earlier versions are compared
// in their present form.
std::string changed_options(const std::string& before, const std::string& now);

}  // namespace annulus
