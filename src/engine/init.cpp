#include "zero/init.h"

#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>

#include "intercept/deferred_values.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero {

struct DeferredInit::Impl {
  explicit Impl(const DeferredInitOptions& options) : defer(!options.without_values) {
    if (!options.dtype) return;
    if (*options.dtype != DType::kFloat32 && *options.dtype != DType::kBFloat16) {
      throw ConfigError(fmt::format(
          "zero::DeferredInit: dtype is {}, want fp32 or bf16: in others initial values overflow or are not "
          "numbers",
          dtype_name(*options.dtype)));
    }
    dtype_before = c10::get_default_dtype();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(device::to_scalar_type(*options.dtype)));
  }
  ~Impl() {
    if (dtype_before) c10::set_default_dtype(*dtype_before);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  intercept::DeferValues defer;
  std::optional<caffe2::TypeMeta> dtype_before;
};

DeferredInit::DeferredInit(const DeferredInitOptions& options) : impl_(std::make_unique<Impl>(options)) {}
DeferredInit::~DeferredInit() = default;

}  // namespace zero
