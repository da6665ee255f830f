# SPDX-License-Identifier: Apache-2.0
# Debian packages, by the target `package` of the preset `package`: the components of install.cmake.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pagedcl)
set(CPACK_PACKAGE_VENDOR "PagedCL")
set(CPACK_PACKAGE_CONTACT "The PagedCL authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each has its own
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL library dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/runtime)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(same_version "(= ${PROJECT_VERSION})")

# pagedcl_package(<component> <package> <section> <summary> <text>)
macro(pagedcl_package component package section summary text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${text}")
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package} COMPONENT ${component})
  install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package} COMPONENT ${component})
endmacro()

set(library libpagedcl${PROJECT_VERSION_MAJOR})
pagedcl_package(library ${library} libs "paged attention for LLM inference on OpenCL devices"
  "A paged KV cache and attention over it on any OpenCL 1.2 device. It takes an\nengine's own context, queue and buffers.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "opencl-icd")

pagedcl_package(dev libpagedcl-dev libdevel "paged attention for LLM inference on OpenCL devices: development"
  "Headers, static libraries, and what CMake and pkg-config need.")
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${library} ${same_version}, ocl-icd-opencl-dev | opencl-dev")

if(PAGEDCL_BUILD_GATHER)
  list(APPEND CPACK_COMPONENTS_ALL gather)
  set(gather libpagedcl-gather${PROJECT_VERSION_MAJOR})
  pagedcl_package(gather ${gather} libs "paged attention on OpenCL devices: the baseline by gather and CLBlast"
    "The same attention by gather, matrix products of CLBlast and softmax: a second\nopinion, and a yardstick.")
  set(CPACK_DEBIAN_GATHER_PACKAGE_DEPENDS "${library} ${same_version}")
  string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", ${gather} ${same_version}")
  set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "libclblast-dev")
endif()
if(PAGEDCL_BUILD_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
  pagedcl_package(tools pagedcl-tools science "paged attention for LLM inference on OpenCL devices: program"
    "The program pagedcl: lists OpenCL devices, generates text, replays cases, measures\nattention and the block manager.")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "opencl-icd")
endif()

include(CPack)
