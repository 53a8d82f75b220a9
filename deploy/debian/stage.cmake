# Run by CPack between the installation into its folders and the packages: adds
# what Debian's policy asks of every package, whatever is in it.
set(packages hoist libhoist0 libhoist_dev python)
set(names hoist libhoist0 libhoist-dev python3-hoist-client)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

function(compress file)
  execute_process(COMMAND gzip -9n ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(package name IN ZIP_LISTS packages names)
  set(usr ${CPACK_TEMPORARY_DIRECTORY}/${package}/usr)
  set(doc ${usr}/share/doc/${name})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright ${doc}/copyright COPYONLY)
  file(WRITE ${doc}/changelog.Debian
    "hoist (${version}) unstable; urgency=medium\n\n"
    "  * Built from the sources; see hoist's changelog for what is new.\n\n"
    " -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${now}\n")
  compress(${doc}/changelog.Debian)
  foreach(from . ${package})
    set(overrides ${CMAKE_CURRENT_LIST_DIR}/${from}/lintian-overrides)
    if(EXISTS ${overrides})
      file(READ ${overrides} text)
      file(APPEND ${usr}/share/lintian/overrides/${name} "${text}")
    endif()
  endforeach()
  file(GLOB pages ${usr}/share/man/man*/*)
  foreach(page ${pages})
    compress(${page})
  endforeach()
endforeach()

set(doc ${CPACK_TEMPORARY_DIRECTORY}/hoist/usr/share/doc/hoist)
configure_file(${CPACK_HOIST_SOURCE}/deploy/README.md ${doc}/README.md COPYONLY)
configure_file(${CPACK_HOIST_SOURCE}/deploy/GUIDE.md ${doc}/GUIDE.md COPYONLY)
configure_file(${CPACK_HOIST_SOURCE}/deploy/SCREENS.md ${doc}/SCREENS.md COPYONLY)
configure_file(${CPACK_HOIST_SOURCE}/CHANGELOG.md ${doc}/changelog COPYONLY)
compress(${doc}/changelog)
# What pip and importlib.metadata know the Python package by.
set(site ${CPACK_TEMPORARY_DIRECTORY}/python/usr/lib/python3/dist-packages)
file(WRITE
  ${site}/hoist_client-${CPACK_PACKAGE_VERSION}.dist-info/METADATA
  "Metadata-Version: 2.1\nName: hoist-client\n"
  "Version: ${CPACK_PACKAGE_VERSION}\nRequires-Python: >=3.10\n")
