#pragma once
// Marks functions that are compiled for the device, too, where the compiler is CUDA's.
#ifdef __CUDACC__
#define ZERO_DEVICE __host__ __device__
#define ZERO_DEVICE_CONSTANT __device__ const
#define ZERO_UNROLL_4 _Pragma("unroll 4")
#else
#define ZERO_DEVICE
#define ZERO_DEVICE_CONSTANT constexpr
#define ZERO_UNROLL_4
#endif
