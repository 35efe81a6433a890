// fmt's functions as libtorch's copy of its headers has them, compiled once (with -fkeep-inline-functions) for all
// files that use them.
#define FMT_HEADER_ONLY
#include <fmt/format.h>
#include <fmt/ranges.h>
