#pragma once
// Marks functions that are compiled for the device, too, where the compiler is CUDA's.
#ifdef __CUDACC__
#define ZERO_DEVICE __host__ __device__
#define ZERO_UNROLL _Pragma("unroll")
#else
#define ZERO_DEVICE
#define ZERO_UNROLL
#endif
