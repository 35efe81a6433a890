#include "zero/init.h"

#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>

#include <unordered_set>

#include "engine/init_scope.h"
#include "intercept/deferred_values.h"
#include "intercept/random_fills.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero {
namespace {

thread_local int g_open_scopes = 0;

/// libtorch's default dtype, changed for a while.
class DefaultDType {
 public:
  DefaultDType(const char* scope, std::optional<DType> dtype) {
    if (!dtype) return;
    if (*dtype != DType::kFloat32 && *dtype != DType::kBFloat16) {
      throw ConfigError(
          fmt::format("{}: dtype is {}, want fp32 or bf16: in others initial values overflow or are not numbers", scope,
                      dtype_name(*dtype)));
    }
    before_ = c10::get_default_dtype();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(storage::to_scalar_type(*dtype)));
  }
  ~DefaultDType() {
    if (before_) c10::set_default_dtype(*before_);
  }
  DefaultDType(const DefaultDType&) = delete;
  DefaultDType& operator=(const DefaultDType&) = delete;

 private:
  std::optional<caffe2::TypeMeta> before_;
};

}  // namespace

const char* engine::open_init_scope() {
  return g_open_scopes > 0 ? "zero::Init" : intercept::defers_values() ? "zero::DeferredInit" : nullptr;
}

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
  Impl(const Group& group, std::optional<DType> wanted) : dtype("zero::Init", wanted) {
    if (group.rank() > 0) skip.emplace();
  }
  DefaultDType dtype;
  std::optional<intercept::SkipRandomFills> skip;
};

Init::Init(const Group& group, std::optional<DType> dtype) : impl_(std::make_unique<Impl>(group, dtype)) {
  ++g_open_scopes;
}
Init::~Init() { --g_open_scopes; }

struct DeferredInit::Impl {
  explicit Impl(const DeferredInitOptions& options)
      : dtype("zero::DeferredInit", options.dtype), defer(!options.without_values) {}
  DefaultDType dtype;
  intercept::DeferValues defer;
};

DeferredInit::DeferredInit(const DeferredInitOptions& options) : impl_(std::make_unique<Impl>(options)) {}
DeferredInit::~DeferredInit() = default;

}  // namespace zero
