#include "observe/debug_check.h"

#include <fmt/format.h>

#include "zero/errors.h"

namespace zero::observe {

void DebugCheck::begin_step() {
  const auto seen = observer_.take_violations();
  if (seen.empty()) return;
  throw InternalError(fmt::format("{} operators saw a released parameter; the first: {}", seen.size(), seen[0]));
}

}  // namespace zero::observe
