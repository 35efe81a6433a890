#pragma once
// Initial values that are drawn in place, left out on a thread: the memory of fresh tensors is then never written, and
// takes no pages.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>

#include "intercept/compat.h"

namespace zero::intercept {

/// While one lives, in-place random operators on its thread do nothing for tensors of kSkippedNbytes and more. Not for
/// two threads.
class SkipRandomFills {
 public:
  SkipRandomFills();
  ~SkipRandomFills();
  SkipRandomFills(const SkipRandomFills&) = delete;
  SkipRandomFills& operator=(const SkipRandomFills&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard sees_all_operators_{kParameterKey};
};

/// Smaller ones share pages with what is written.
inline constexpr std::size_t kSkippedNbytes = 64 << 10;

bool skips_random_fills();  ///< on this thread
/// "aten::normal_" and its like: the first argument is overwritten with random numbers, and returned.
bool is_random_fill(std::string_view schema_name);

}  // namespace zero::intercept
