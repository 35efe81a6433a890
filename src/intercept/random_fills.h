#pragma once
// Initial values that are drawn in place, left out on a thread: the memory of fresh tensors is then never
// written, and takes no pages. The generator advances as if they had been drawn, and what is not known of a
// tensor, or of one that was made from it, is remembered with its storage.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <string_view>
#include <unordered_set>

#include "intercept/compat.h"

namespace zero::intercept {

/// While one lives, in-place random operators on its thread write nothing into tensors of kSkippedNbytes and
/// more. Not for two threads.
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
/// Memory with as many elements as `self`, to draw into in its place; reused until drop_scratch(), as when the last
/// SkipRandomFills goes.
at::Tensor scratch_like(const at::Tensor& self);
void drop_scratch();
/// The values in this tensor's storage are not those of a thread that skips nothing.
void mark_unknown(const at::Tensor& tensor);
bool is_unknown(const at::Tensor& tensor);
/// Forgets the storages of `known`, whose values come from elsewhere. Says what lives besides: the sizes of a tensor
/// whose values were left out, or which was made from such; empty: nothing does.
std::string forget_unknown(const std::unordered_set<const c10::StorageImpl*>& known);
/// "aten::normal_" and its like: the first argument is overwritten with random numbers, and returned.
bool is_random_fill(std::string_view schema_name);

}  // namespace zero::intercept
