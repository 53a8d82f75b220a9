# Debian packages, by CPack out of a build tree: scripts/package.sh --deb.
#
# They hold what `cmake --install` installs, below /usr, but for what lies
# elsewhere there: libhoist (multiarch), hoistd.toml (a conffile).
set(debian ${CMAKE_CURRENT_SOURCE_DIR}/debian)
install(FILES hoistd.toml DESTINATION /etc/hoist COMPONENT debian_conf
  EXCLUDE_FROM_ALL)

# Who is asked about the packages: whoever builds them, by the name and address
# that Debian's own tools take ($DEBFULLNAME, $DEBEMAIL), or as it is set here.
set(builder "hoist's maintainers")
set(address hoist@localhost)
if(NOT "$ENV{DEBFULLNAME}" STREQUAL "")
  set(builder "$ENV{DEBFULLNAME}")
endif()
if(NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(address "$ENV{DEBEMAIL}")
endif()
set(HOIST_PACKAGE_MAINTAINER "${builder} <${address}>" CACHE STRING
  "Who maintains the Debian packages: NAME <ADDRESS>")
if(NOT HOIST_PACKAGE_MAINTAINER MATCHES "^[^<>\n]+ <[^<>@ ]+@[^<>@ ]+>$")
  message(FATAL_ERROR "HOIST_PACKAGE_MAINTAINER is "
    "\"${HOIST_PACKAGE_MAINTAINER}\"; write NAME <ADDRESS>")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hoist)
set(CPACK_PACKAGE_VENDOR hoist)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # Each has its own.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL daemon cli service man completions
  monitoring debian_conf
  debian_client debian_dev python)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
  WORLD_READ WORLD_EXECUTE)
set(CPACK_PROJECT_CONFIG_FILE ${debian}/versions.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${debian}/stage.cmake)
set(CPACK_HOIST_SOURCE ${PROJECT_SOURCE_DIR})

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${HOIST_PACKAGE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)

set(CPACK_DEBIAN_HOIST_PACKAGE_NAME hoist)
set(CPACK_DEBIAN_HOIST_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_HOIST_PACKAGE_SHLIBDEPS ON)
# What makes the users, and what takes them away.
set(CPACK_DEBIAN_HOIST_PACKAGE_DEPENDS
  "systemd | systemd-standalone-sysusers, passwd")
set(CPACK_DEBIAN_HOIST_PACKAGE_CONTROL_EXTRA ${debian}/hoist/postinst
  ${debian}/hoist/prerm ${debian}/hoist/postrm ${debian}/hoist/conffiles)
set(CPACK_DEBIAN_HOIST_DESCRIPTION "one owner of the weights of models
hoistd keeps the weights of models in GPU memory, pinned host memory and
NVMe, and stages named groups of them for the workers of this node before
they compute with them. hoistctl shows what lies where, and moves it.")

set(CPACK_DEBIAN_LIBHOIST0_PACKAGE_NAME libhoist0)
set(CPACK_DEBIAN_LIBHOIST0_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBHOIST0_PACKAGE_SHLIBDEPS ON)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/shlibs
  CONTENT "libhoist 0 libhoist0 (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBHOIST0_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_BINARY_DIR}/shlibs ${debian}/libhoist0/triggers)
set(CPACK_DEBIAN_LIBHOIST0_DESCRIPTION "weights that live in hoistd - library
What C and C++ programs and the Python package connect to hoistd with, to
stage the weights that they compute with. It needs libc and libstdc++ alone.")

set(CPACK_DEBIAN_LIBHOIST_DEV_PACKAGE_NAME libhoist-dev)
set(CPACK_DEBIAN_LIBHOIST_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBHOIST_DEV_DESCRIPTION "weights that live in hoistd - headers
The headers for C99 and C++17, and what CMake's find_package(hoist) and
pkg-config find libhoist with. hoist/torch.h is for LibTorch.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-hoist-client)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-numpy, python3-torch")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
  ${debian}/python/postinst ${debian}/python/prerm)
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "weights that live in hoistd - Python 3
The package hoist for the system's Python: NumPy views and PyTorch modules
whose weights hoistd stages before they are used. Other Pythons install the
wheel instead.")

include(CPack)
foreach(group hoist libhoist0 libhoist_dev python)
  cpack_add_component_group(${group})
endforeach()
foreach(component daemon cli service man completions monitoring debian_conf)
  cpack_add_component(${component} GROUP hoist)
endforeach()
cpack_add_component(debian_client GROUP libhoist0)
cpack_add_component(debian_dev GROUP libhoist_dev)
cpack_add_component(python GROUP python)
