# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: headers, libraries, the program, and what find_package and pkg-config need.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pagedcl)

# The baseline is an export set of its own, since it alone needs CLBlast.
install(TARGETS pagedcl pagedcl_static EXPORT pagedcl)
install(EXPORT pagedcl NAMESPACE pagedcl:: FILE pagedclTargets.cmake DESTINATION ${package_dir})
install(DIRECTORY include/pagedcl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN attn_gather.h EXCLUDE)
if(PAGEDCL_BUILD_GATHER)
  install(TARGETS pagedcl_gather pagedcl_gather_static EXPORT pagedcl_gather)
  install(EXPORT pagedcl_gather NAMESPACE pagedcl:: FILE pagedclGatherTargets.cmake DESTINATION ${package_dir})
  install(FILES include/pagedcl/attn_gather.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pagedcl)
endif()
if(PAGEDCL_BUILD_TOOLS)
  install(TARGETS pagedcl_tool)
endif()

configure_package_config_file(cmake/pagedclConfig.cmake.in pagedclConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(pagedclConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pagedclConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/pagedclConfigVersion.cmake
        DESTINATION ${package_dir})

# The prefix is relative to the file, so an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
if(PAGEDCL_OPENCL STREQUAL "link")
  set(pc_requires OpenCL)
elseif(CMAKE_DL_LIBS)
  set(pc_dl " -l${CMAKE_DL_LIBS}")
endif()
configure_file(cmake/pagedcl.pc.in pagedcl.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pagedcl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
