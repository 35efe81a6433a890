// Compiled with the flags of its instruction set: see src/comm in CMakeLists.txt.
#define ZERO_ISA avx512
#include "comm/reduce_body.inc"
