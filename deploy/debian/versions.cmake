# Read by CPack, which knows the release by then: packages of one build belong
# together.
set(version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(CPACK_DEBIAN_LIBHOIST_DEV_PACKAGE_DEPENDS "libhoist0 (= ${version})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS
  "python3 (>= 3.10), libhoist0 (= ${version})")
