# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: headers, libraries, the program, and what find_package and pkg-config need. The
# components are the packages of cmake/packages.cmake.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pagedcl)

# pagedcl_install(<component> <export set> <target>...): libraries; what only builds need goes to the component dev.
function(pagedcl_install component set)
  install(TARGETS ${ARGN} EXPORT ${set}
    LIBRARY COMPONENT ${component} NAMELINK_COMPONENT dev
    RUNTIME COMPONENT ${component}
    ARCHIVE COMPONENT dev)
endfunction()

# The baseline is an export set of its own, since it alone needs CLBlast.
pagedcl_install(library pagedcl pagedcl pagedcl_static)
install(EXPORT pagedcl NAMESPACE pagedcl:: FILE pagedclTargets.cmake DESTINATION ${package_dir} COMPONENT dev)
install(DIRECTORY include/pagedcl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        PATTERN attn_gather.h EXCLUDE)
if(PAGEDCL_BUILD_GATHER)
  pagedcl_install(gather pagedcl_gather pagedcl_gather pagedcl_gather_static)
  install(EXPORT pagedcl_gather NAMESPACE pagedcl:: FILE pagedclGatherTargets.cmake DESTINATION ${package_dir}
          COMPONENT dev)
  install(FILES include/pagedcl/attn_gather.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pagedcl COMPONENT dev)
endif()
set(PAGEDCL_ZSH_FOLDER site-functions CACHE STRING "Folder of zsh's that completions are installed in")
if(PAGEDCL_BUILD_TOOLS)
  install(TARGETS pagedcl_tool RUNTIME COMPONENT tools)
  install(FILES tuning/pagedcl.tuning DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/pagedcl COMPONENT tools)
  install(FILES tools/completion/pagedcl.bash RENAME pagedcl
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions COMPONENT tools)
  install(FILES tools/completion/_pagedcl
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/${PAGEDCL_ZSH_FOLDER} COMPONENT tools)
endif()
if(PAGEDCL_BUILD_TOOLS AND PAGEDCL_BUILD_MAN)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/tools/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools
          FILES_MATCHING PATTERN "*.1")
endif()

configure_package_config_file(cmake/pagedclConfig.cmake.in pagedclConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(pagedclConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pagedclConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/pagedclConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)

# The prefix is relative to the file, so an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
if(PAGEDCL_OPENCL STREQUAL "link")
  set(pc_requires OpenCL)
elseif(CMAKE_DL_LIBS)
  set(pc_dl " -l${CMAKE_DL_LIBS}")
endif()
configure_file(cmake/pagedcl.pc.in pagedcl.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pagedcl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)
