# What every target of ours is compiled with. Linked PRIVATE, never exported.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)

find_program(HOIST_CCACHE ccache)
if(HOIST_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${HOIST_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HOIST_CCACHE})
endif()

find_program(HOIST_MOLD mold)
if(HOIST_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(hoist_rules INTERFACE)
target_compile_features(hoist_rules INTERFACE cxx_std_20)
# Whether debug lines are written is the log's level's to say, in every build.
target_compile_definitions(hoist_rules INTERFACE
  SPDLOG_ACTIVE_LEVEL=SPDLOG_LEVEL_DEBUG)
target_compile_options(hoist_rules INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow
    -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
    -Werror>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>
  # GCC 12 and 13 see overlaps in std::string's operator+ at -O3 (GCC PR105651),
  # and read an empty std::optional's value (GCC PR80635).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict
    -Wno-maybe-uninitialized>)

# Sanitizers go into every target of the tree, C and generated code included,
# since an instrumented half misses the other half's errors.
if(HOIST_SANITIZE)
  add_compile_options(-fsanitize=${HOIST_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HOIST_SANITIZE})
  # CUDA's driver is called through our declarations of its functions, whose
  # handles are other types than its own. The other four checks take a third of
  # the compile time; the night's gcc build (asan-gcc) has them.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function,vptr,null,alignment,object-size>)
endif()
