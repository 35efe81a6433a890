// Compiled with the flags of its instruction set: see src/optim in CMakeLists.txt.
#define ZERO_ISA avx2
#include "optim/kernels_body.inc"
