// The benches' kernels. kernels_ptx.h is made of this by
//   nvcc -ptx -arch=compute_75 -o - kernels.cu | sed "s/^.version .*/.version 6.5/;s/\t/ /g"
// and loaded by the driver, so that no toolkit is needed to build or run.

// HBM-bound: adds the checksum (synthetic.h) of `pairs` pairs of words to *sum.
extern "C" __global__ void checksum(const ulonglong2* data,
                                    unsigned long long pairs,
                                    unsigned long long* sum) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long own = 0;
#pragma unroll 4
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs;
       i += step) {
    const ulonglong2 pair = __ldcs(data + i);
    own += pair.x * (4 * i + 1) + pair.y * (4 * i + 3);
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    own += __shfl_down_sync(0xffffffffu, own, lane);
  }
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

// Keeps one multiprocessor busy for so many cycles.
extern "C" __global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}
