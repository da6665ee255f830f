# SPDX-License-Identifier: Apache-2.0
# pagedcl_embed(<target> ROOT <folder> FILES <name.cl>...)
#
# Embeds OpenCL sources into a target. Each file, its #include "..." lines resolved against ROOT and marked with #line,
# becomes build/.../kernels/<path>.cl (what offline compilers are given) and a C array
#   const char pcl_source_<path with _>[];
# that ends in a zero byte. Other files are embedded as they are. They are made anew when any file under ROOT changes.
function(pagedcl_embed target)
  cmake_parse_arguments(arg "" "ROOT" "FILES" ${ARGN})
  get_filename_component(root "${arg_ROOT}" ABSOLUTE)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${root}/*.h")
  foreach(name IN LISTS arg_FILES)
    string(REGEX REPLACE "[^A-Za-z0-9]" "_" symbol "${name}")
    string(REGEX REPLACE "_cl$" "" symbol "${symbol}")
    set(resolved "${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}")
    set(array "${CMAKE_CURRENT_BINARY_DIR}/kernels/${symbol}.c")
    add_custom_command(
      OUTPUT "${resolved}" "${array}"
      COMMAND ${CMAKE_COMMAND} -DROOT=${root} -DNAME=${name} -DSYMBOL=pcl_source_${symbol} -DRESOLVED=${resolved}
              -DARRAY=${array} -P "${PROJECT_SOURCE_DIR}/cmake/embed_file.cmake"
      DEPENDS "${root}/${name}" ${headers} "${PROJECT_SOURCE_DIR}/cmake/embed_file.cmake"
      COMMENT "Embedding ${name}"
      VERBATIM)
    target_sources(${target} PRIVATE "${array}")
  endforeach()
endfunction()
