# Finds the CUDA toolkit, if HOIST_CUDA allows it, and sets HOIST_HAVE_CUDA.
#
# cudart is linked statically and libcuda.so.1 is found at run time, so the one
# binary also starts where there is no driver. No CUDA language is needed: the
# daemon runs no kernels (shared/design.md, "Ordering on the GPU").
set(HOIST_HAVE_CUDA OFF)
if(NOT HOIST_CUDA STREQUAL "OFF")
  if(NOT DEFINED CUDAToolkit_ROOT AND EXISTS /usr/local/cuda)
    set(CUDAToolkit_ROOT /usr/local/cuda)
  endif()
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND)
    set(HOIST_HAVE_CUDA ON)
  elseif(HOIST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HOIST_CUDA=ON, but no CUDA toolkit >= 12.8 was found; "
      "set CUDAToolkit_ROOT or use HOIST_CUDA=OFF")
  endif()
endif()
message(STATUS "hoist: CUDA device: ${HOIST_HAVE_CUDA}")
