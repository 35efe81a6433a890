#include "intercept/random_fills.h"

#include <ATen/Functions.h>
#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

namespace zero::intercept {
namespace {

struct Unknown {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::vector<std::int64_t> sizes;  ///< of the tensor that was marked
};

thread_local int g_depth = 0;
thread_local at::Tensor g_scratch;
thread_local std::unordered_map<const c10::StorageImpl*, Unknown> g_unknown;

}  // namespace

SkipRandomFills::SkipRandomFills() { ++g_depth; }
SkipRandomFills::~SkipRandomFills() {
  if (--g_depth == 0) drop_scratch();
}

void drop_scratch() { g_scratch.reset(); }

at::Tensor scratch_like(const at::Tensor& self) {
  if (!self.is_contiguous()) return at::empty_strided(self.sizes(), self.strides(), self.options());
  if (!g_scratch.defined() || g_scratch.scalar_type() != self.scalar_type() || g_scratch.numel() < self.numel()) {
    g_scratch.reset();
    g_scratch = at::empty({self.numel()}, self.options().requires_grad(false));
  }
  return g_scratch.narrow(0, 0, self.numel()).view(self.sizes());
}

void mark_unknown(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage().nbytes() == 0) return;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto found = g_unknown.find(storage);
  if (found != g_unknown.end() && !found->second.storage.expired()) return;
  g_unknown.insert_or_assign(
      storage,
      Unknown{c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()), tensor.sizes().vec()});
}

bool is_unknown(const at::Tensor& tensor) {
  if (g_unknown.empty() || !tensor.defined() || !tensor.has_storage()) return false;
  const auto found = g_unknown.find(tensor.storage().unsafeGetStorageImpl());
  return found != g_unknown.end() && !found->second.storage.expired();
}

std::string forget_unknown(const std::unordered_set<const c10::StorageImpl*>& known) {
  std::erase_if(g_unknown, [&](const auto& one) { return one.second.storage.expired() || known.contains(one.first); });
  if (g_unknown.empty()) return {};
  return fmt::format("[{}]", fmt::join(g_unknown.begin()->second.sizes, ", "));
}

bool skips_random_fills() { return g_depth > 0; }

bool is_random_fill(std::string_view schema_name) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "aten::normal_", "aten::uniform_",    "aten::random_",    "aten::bernoulli_",
      "aten::cauchy_", "aten::log_normal_", "aten::geometric_", "aten::exponential_"};
  return std::ranges::find(kNames, schema_name) != kNames.end();
}

}  // namespace zero::intercept
