# SPDX-License-Identifier: Apache-2.0
# The warnings that every target of the project is built with.
add_library(pagedcl_warnings INTERFACE)
target_compile_options(pagedcl_warnings INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Wundef -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
  $<$<BOOL:${PAGEDCL_WERROR}>:-Werror>)
