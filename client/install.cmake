# What of libhoist is installed, and how others find it.
include(CMakePackageConfigHelpers)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/hoist-config.cmake CONTENT
  "include(\${CMAKE_CURRENT_LIST_DIR}/hoist-targets.cmake)\n" @ONLY)
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/hoist-config-version.cmake
  COMPATIBILITY SameMinorVersion)

# hoist_install_library(<libdir> <runtime component> <development component>
#                       [EXCLUDE_FROM_ALL])
function(hoist_install_library libdir runtime dev)
  set(set hoist-${dev}-targets)
  install(TARGETS hoist_client EXPORT ${set}
    LIBRARY DESTINATION ${libdir}
      COMPONENT ${runtime} NAMELINK_COMPONENT ${dev} ${ARGN}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
      COMPONENT ${dev} ${ARGN}
    FILE_SET torch_headers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
      COMPONENT ${dev} ${ARGN})
  install(EXPORT ${set} NAMESPACE hoist:: FILE hoist-targets.cmake
    DESTINATION ${libdir}/cmake/hoist COMPONENT ${dev} ${ARGN})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hoist-config.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/hoist-config-version.cmake
    DESTINATION ${libdir}/cmake/hoist COMPONENT ${dev} ${ARGN})
  # As many folders up as <libdir>/pkgconfig has.
  string(REGEX REPLACE "[^/]+" ".." UP ${libdir}/pkgconfig)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${dev}/hoist.pc)
  configure_file(hoist.pc.in ${made} @ONLY)
  install(FILES ${made} DESTINATION ${libdir}/pkgconfig
    COMPONENT ${dev} ${ARGN})
endfunction()
hoist_install_library(${CMAKE_INSTALL_LIBDIR} client dev)
# Where Debian's packages have it, whatever this tree's prefix is.
set(HOIST_DEBIAN_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE INTERNAL "")
hoist_install_library(${HOIST_DEBIAN_LIBDIR} debian_client debian_dev
  EXCLUDE_FROM_ALL)

# The Python package, for the distribution's own Python: it finds libhoist
# where that is installed (hoist/_library.py). All other Pythons have the wheel.
set(site lib/python3/dist-packages)
install(DIRECTORY python/hoist DESTINATION ${site} COMPONENT python
  EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
