#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

// An earlier option that another option now includes. Names are without dashes.
struct RenamedOption {
  const char* old;      // "lr-steps"
  const char* option;   // "schedule"
  const char* example;  // "step:30,60,80", which may end with an explanation
  const char* of;       // the first value that `option` must have, "step"; empty: any
  const char* initial;  // the default, which needs no counterpart: "none"
  // The resulting text, with {all} old values, or {first} and {second} in a pair. If it begins with a colon, it
  // extends the first value; otherwise it is a further value, which replaces a first value 'none'. Null: the present
  // option can mean something else, so that the old one is not merged.
  const char* form;

  // "--lr-steps is now --schedule step:30,60,80"
  std::string message() const;
};

// Returns null if there is no such earlier option.
const RenamedOption* find_renamed(std::string_view old);

// Returns an option's values in a configuration; null if there are none.
using FindValues = std::function<std::vector<std::string>*(std::string_view option)>;

// Adds the values of earlier options to the options that include them now. Returns the earlier options that the
// configuration has no such option for.
std::vector<std::string> merge_renamed(const FindValues& find);

}  // namespace annulus
