# Writes the source file FILE with the commit of the repository in the folder SOURCE. Every build runs this; a file that is
# up to date is not written, so nothing is rebuilt.
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git --no-optional-locks describe --always --dirty --exclude=* WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${FILE} @ONLY CONTENT [[#include "src/io/version.h"

const char* annulus::commit() {
  return "@commit@";
}
]])
