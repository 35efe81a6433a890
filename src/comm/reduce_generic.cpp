// Compiled with the flags of its instruction set: see src/comm in CMakeLists.txt.
#define ZERO_ISA generic
#include "comm/reduce_body.inc"
