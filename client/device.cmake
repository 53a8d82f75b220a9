# A worker's view of device memory. No CUDA toolkit and no Abseil: the driver
# is found at run time (hoist/shared/cuda_driver.h).
add_library(hoist_client_device STATIC
  ${CMAKE_CURRENT_LIST_DIR}/src/base/start_thread.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/arena_memory_cuda.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/arena_memory_emulated.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/cuda_context.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/device_map_cuda.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/device_map_emulated.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/mapped_slabs.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/piece_range_cuda.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/piece_range_emulated.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/slab_ranges.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/stream_copies.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/stream_order_cuda.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/stream_order_emulated.cc
  ${CMAKE_CURRENT_LIST_DIR}/src/device/word_wait.cc)
target_link_libraries(hoist_client_device
  PUBLIC hoist_shared PRIVATE hoist_rules)
target_include_directories(hoist_client_device PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_features(hoist_client_device PUBLIC cxx_std_20)
set_target_properties(hoist_client_device PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
