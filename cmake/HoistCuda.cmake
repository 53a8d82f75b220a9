# Finds the CUDA toolkit, if HOIST_CUDA allows it, and sets HOIST_HAVE_CUDA.
#
# The CUDA device is always built: libcuda.so.1 is found at run time, so the one
# binary also starts where there is no driver, and no kernels are run. The toolkit
# serves one test, which holds our declarations of the driver API to cuda.h.
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
message(STATUS "hoist: CUDA toolkit to check against: ${HOIST_HAVE_CUDA}")
