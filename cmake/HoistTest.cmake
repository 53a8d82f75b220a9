# hoist_test(NAME <name> KIND <label> [LONG] SOURCES <file>... LIBS <target>...)
#
# One GoogleTest program, registered test by test; ctest's label is its kind:
# unit, conformance, component, fault, tidy, stress, install. LONG: it runs for
# longer than it compiles, and is optimized.
find_package(GTest REQUIRED)
include(GoogleTest)

# Debian's Abseil is not instrumented; without this, TSan takes all that a
# Mutex guards for races.
if(HOIST_SANITIZE MATCHES "thread")
  set(hoist_tsan_source ${PROJECT_SOURCE_DIR}/tests/support/tsan_absl_mutex.cc)
endif()

# Tests' own code takes longer to compile than to run: half as long so, of a
# whole build a third. Sanitizers look into the product, all of which has all
# their checks; the four that are left out here take half of the time.
add_library(hoist_test_rules INTERFACE)
target_link_libraries(hoist_test_rules INTERFACE hoist_rules)
if(HOIST_SANITIZE MATCHES "undefined")
  target_compile_options(hoist_test_rules INTERFACE
    -O0 -g1 -fno-sanitize=vptr,null,alignment,object-size)
else()
  target_compile_options(hoist_test_rules INTERFACE
    $<$<CONFIG:RelWithDebInfo>:-O1 -g1>)
endif()

function(hoist_test)
  cmake_parse_arguments(T "LONG" "NAME;KIND;TIMEOUT" "SOURCES;LIBS" ${ARGN})
  set(rules hoist_test_rules)
  if(T_LONG)
    set(rules hoist_rules)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  add_executable(${T_NAME} ${T_SOURCES} ${hoist_tsan_source})
  if(hoist_tsan_source)
    find_package(absl REQUIRED)
    target_link_libraries(${T_NAME} PRIVATE absl::synchronization absl::status
      ${CMAKE_DL_LIBS})
  endif()
  target_link_libraries(${T_NAME} PRIVATE ${rules} ${T_LIBS}
    GTest::gmock GTest::gtest_main)
  target_include_directories(${T_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  gtest_discover_tests(${T_NAME} TEST_PREFIX ${T_KIND}.
    DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${T_KIND} TIMEOUT ${T_TIMEOUT})
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
