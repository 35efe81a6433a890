#pragma once
// ZERO_CHECK(condition, "format {}", args...): an invariant of ours. A failure is our bug, never the user's.
#include <fmt/format.h>

#include <string>

#include "zero/errors.h"

namespace zero::base {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& message);

}  // namespace zero::base

#define ZERO_CHECK(condition, ...)                                                               \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::zero::base::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
