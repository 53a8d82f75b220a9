# hoist_test(NAME <name> KIND <label> [LONG] [TIMEOUT <s>]
#            [FILTER <gtest filter>] SOURCES <file>... LIBS <target>...)
#
# One GoogleTest program. ctest's label is its kind: unit, conformance, sim,
# component, fault. LONG: it runs for longer than it compiles, and is optimized.
#
# A program is one process and one ctest entry; its cases are in
# gtest/<entry>.xml of the build folder, which scripts/tally.py sums. Kinds that
# depend on real time (component, fault) have an entry for each case, so that a
# retry repeats one case.
#
# HOIST_TEST_PROGRAMS=OFF: simulations are built and run, other programs neither.
# CI's `dev` is built so, since its `asan` runs them all.
#
# ThreadSanitizer: a program that links gRPC is left out, since Debian's gRPC is
# not instrumented.
option(HOIST_TEST_PROGRAMS "Build GoogleTest programs that are no simulations" ON)
find_package(GTest REQUIRED)
include(GoogleTest)

# Debian's Abseil is not instrumented; without this, TSan takes all that a
# Mutex guards for races.
if(HOIST_SANITIZE MATCHES "thread")
  set(hoist_tsan_source ${PROJECT_SOURCE_DIR}/tests/support/tsan_absl_mutex.cc)
endif()

# Tests' own code takes longer to compile than to run: half as long without
# optimization, of a whole build a third.
add_library(hoist_test_rules INTERFACE)
target_link_libraries(hoist_test_rules INTERFACE hoist_rules)
if(HOIST_SANITIZE MATCHES "undefined")
  target_compile_options(hoist_test_rules INTERFACE -O0 -g1)
else()
  target_compile_options(hoist_test_rules INTERFACE
    $<$<CONFIG:RelWithDebInfo>:-O1 -g1>)
endif()

# hoist_test_helper(<target>): a program of tests, or that they start.
function(hoist_test_helper target)
  add_dependencies(hoist_tests ${target})
  if(hoist_tsan_source)
    target_sources(${target} PRIVATE ${hoist_tsan_source})
    find_package(absl REQUIRED)
    target_link_libraries(${target} PRIVATE absl::synchronization absl::status
      ${CMAKE_DL_LIBS})
  endif()
endfunction()

# All test programs, with the programs that they start.
add_custom_target(hoist_tests)

# hoist_links(<variable> <name> <target>...): whether any of the targets links
# <name>, itself or through others.
function(hoist_links variable name)
  set(known)
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open target)
    string(REGEX REPLACE "^\\$<(LINK_ONLY|BUILD_INTERFACE):(.*)>$" "\\2" target "${target}")
    if(target STREQUAL name)
      set(${variable} TRUE PARENT_SCOPE)
      return()
    endif()
    if(NOT TARGET ${target} OR target IN_LIST known)
      continue()
    endif()
    list(APPEND known ${target})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(more ${target} ${property})
      if(more)
        list(APPEND open ${more})
      endif()
    endforeach()
  endwhile()
  set(${variable} FALSE PARENT_SCOPE)
endfunction()

# hoist_run_program(NAME <name> PROGRAM <target> KIND <label>[.<way>]
#                   [TIMEOUT <s>] [FILTER <gtest filter>]
#                   [ENVIRONMENT <variable=value>...])
function(hoist_run_program)
  cmake_parse_arguments(R "" "NAME;PROGRAM;KIND;TIMEOUT;FILTER" "ENVIRONMENT" ${ARGN})
  get_target_property(unbuilt ${R_PROGRAM} EXCLUDE_FROM_ALL)
  if(unbuilt)
    return()
  endif()
  set(entry ${R_KIND}.${R_NAME})
  if(NOT R_FILTER)
    set(R_FILTER *)
  endif()
  if(NOT R_TIMEOUT)
    set(R_TIMEOUT 600)
  endif()
  string(REGEX REPLACE "[.].*" "" label ${R_KIND})
  add_test(NAME ${entry} COMMAND ${R_PROGRAM} --gtest_filter=${R_FILTER})
  set_tests_properties(${entry} PROPERTIES
    LABELS ${label} TIMEOUT ${R_TIMEOUT}
    ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/gtest/${entry}.xml;${R_ENVIRONMENT}")
endfunction()

function(hoist_test)
  cmake_parse_arguments(T "LONG" "NAME;KIND;TIMEOUT;FILTER" "SOURCES;LIBS" ${ARGN})
  if(HOIST_SANITIZE MATCHES "thread")
    hoist_links(links_grpc PkgConfig::GRPCPP ${T_LIBS})
    if(links_grpc)
      return()
    endif()
  endif()
  set(rules hoist_test_rules)
  if(T_LONG)
    set(rules hoist_rules)
  endif()
  set(unbuilt)
  if(NOT HOIST_TEST_PROGRAMS AND NOT T_KIND STREQUAL sim)
    set(unbuilt EXCLUDE_FROM_ALL)
  endif()
  add_executable(${T_NAME} ${unbuilt} ${T_SOURCES} $<TARGET_OBJECTS:hoist_cpu_seconds>)
  hoist_test_helper(${T_NAME})
  target_link_libraries(${T_NAME} PRIVATE ${rules} hoist_test_support ${T_LIBS}
    GTest::gmock GTest::gtest_main)
  target_include_directories(${T_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  if(unbuilt)
    return()
  endif()
  if(T_KIND MATCHES "component|fault")
    if(NOT T_TIMEOUT)
      set(T_TIMEOUT 120)
    endif()
    gtest_discover_tests(${T_NAME} TEST_PREFIX ${T_KIND}.
      DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${T_KIND} TIMEOUT ${T_TIMEOUT})
  else()
    hoist_run_program(NAME ${T_NAME} PROGRAM ${T_NAME} KIND ${T_KIND}
      TIMEOUT ${T_TIMEOUT} FILTER ${T_FILTER})
  endif()
endfunction()

# hoist_find_python(<variable>): the interpreter of tests in Python. The
# environment that scripts/setup.sh makes has NumPy, and torch if asked for.
function(hoist_find_python variable)
  set(python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  if(NOT EXISTS ${python})
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    set(python ${Python3_EXECUTABLE})
  endif()
  set(${variable} ${python} PARENT_SCOPE)
endfunction()
