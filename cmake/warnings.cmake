# SPDX-License-Identifier: Apache-2.0
# The warnings that every target of the project is built with. To MinGW-w64's gcc `printf` of an attribute is Microsoft's,
# which knows no %zu, though the function that is called does.
add_library(pagedcl_warnings INTERFACE)
target_compile_options(pagedcl_warnings INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Wundef -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
  $<$<PLATFORM_ID:Windows>:-Wno-format>
  $<$<BOOL:${PAGEDCL_WERROR}>:-Werror>)
