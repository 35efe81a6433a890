#include "zero/init.h"

#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>

#include <unordered_set>

#include "engine/init_scope.h"
#include "intercept/random_fills.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero {
namespace {

thread_local int g_open_scopes = 0;

}  // namespace

bool engine::init_scope_is_open() { return g_open_scopes > 0; }

std::string engine::problem_with_values_left_out(const Inventory& inventory) {
  std::unordered_set<const c10::StorageImpl*> known;
  for (const auto* tensors : {&inventory.parameters, &inventory.buffers}) {
    for (const auto& one : *tensors)
      if (one.tensor.defined() && one.tensor.has_storage()) known.insert(one.tensor.storage().unsafeGetStorageImpl());
  }
  const std::string sizes = intercept::forget_unknown(known);
  if (sizes.empty()) return {};
  return fmt::format(
      "a tensor of sizes {} was made under zero::Init from random values that only the first rank has, and "
      "it is neither a "
      "parameter nor a buffer of the model, which get that rank's: register it, or make it outside of the "
      "zero::Init. Of "
      "several models, each needs a zero::Init of its own, and initialize() before the next",
      sizes);
}

struct Init::Impl {
  std::optional<intercept::SkipRandomFills> skip;
  std::optional<caffe2::TypeMeta> dtype_before;
};

Init::Init(const Group& group, std::optional<DType> dtype) : impl_(std::make_unique<Impl>()) {
  if (dtype && *dtype != DType::kFloat32 && *dtype != DType::kBFloat16) {
    throw ConfigError(
        fmt::format("zero::Init: dtype is {}, want fp32 or bf16: in others initial values overflow or are "
                    "not numbers",
                    dtype_name(*dtype)));
  }
  if (dtype) {
    impl_->dtype_before = c10::get_default_dtype();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(storage::to_scalar_type(*dtype)));
  }
  if (group.rank() > 0) impl_->skip.emplace();
  ++g_open_scopes;
}

Init::~Init() {
  --g_open_scopes;
  if (impl_->dtype_before) c10::set_default_dtype(*impl_->dtype_before);
}

}  // namespace zero
