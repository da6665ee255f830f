# SPDX-License-Identifier: Apache-2.0
# Writes HEADER with the commit of SOURCE, or COMMIT when that is given, and BUILD_TYPE.
if(NOT COMMIT)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT COMMIT MATCHES "^[0-9A-Za-z._-]+$")
  set(COMMIT unknown)
endif()
set(text "#define BENCH_COMMIT \"${COMMIT}\"\n#define BENCH_BUILD_TYPE \"${BUILD_TYPE}\"\n")
set(old "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
