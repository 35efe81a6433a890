#include "engine/buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "checkpoint/load_report.h"
#include "engine/agreement.h"
#include "engine/tensor_types.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

bool has_floats(const at::Tensor& buffer) { return buffer.is_floating_point() || buffer.is_complex(); }

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// The elements that have memory of their own: one along each expanded dimension.
at::Tensor without_expansion(at::Tensor tensor, at::IntArrayRef strides) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (strides[d] == 0 && tensor.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  return (a == b).logical_or_(a.isnan().logical_and_(b.isnan())).all().item<bool>();  // NaN is NaN here
}

/// Writes values of the buffer's own kind where it lies. False: elements share memory and the values differ.
bool write_in_place(const at::Tensor& target, const at::Tensor& source) {
  const at::Tensor core = without_expansion(target, target.strides());
  const at::Tensor core_source = without_expansion(source, target.strides());
  if (core.numel() != target.numel() && !same_values(core_source.expand_as(source), source)) return false;
  core.copy_(core_source);
  // Windows of one memory (unfold, as_strided): what was written last counts.
  return at::has_internal_overlap(core) == at::MemOverlap::No || same_values(core, core_source);
}

[[noreturn]] void refuse(const Inventory::Named& buffer, std::string_view what, std::string_view remedy) {
  throw ModelError(fmt::format("buffer '{}' {}; {}", buffer.name, what, remedy));
}

/// The memory of all buffers on one storage, in another dtype.
class ConvertedStorages {
 public:
  explicit ConvertedStorages(const Inventory& inventory) {
    for (const auto& buffer : inventory.buffers) ++users_[storage_of(buffer.tensor)];
  }

  void convert(const Inventory::Named& buffer, at::ScalarType dtype) {
    const at::Tensor& tensor = buffer.tensor;
    const void* storage = storage_of(tensor);
    if (users_[storage] == 1) {
      tensor.set_data(tensor.to(dtype));
      return;
    }
    // Views of one memory stay views of one memory.
    const auto nbytes = static_cast<std::int64_t>(tensor.storage().nbytes());
    const auto numel = nbytes / static_cast<std::int64_t>(tensor.element_size());
    auto [found, is_new] = made_.try_emplace(storage);
    if (is_new) {
      found->second = {tensor.scalar_type(), tensor.detach().as_strided({numel}, {1}, 0).to(dtype), tensor.storage()};
    }
    if (found->second.from != tensor.scalar_type()) {
      refuse(buffer, "shares memory with a buffer of another dtype and cannot be converted with it",
             "register a clone() of it, or set zerotorch.buffer_dtype to \"module\"");
    }
    tensor.set_data(found->second.values.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()));
  }

 private:
  struct Made {
    at::ScalarType from = at::kFloat;
    at::Tensor values;
    at::Storage old;  ///< keeps the key's address taken
  };
  std::map<const void*, int> users_;
  std::map<const void*, Made> made_;
};

}  // namespace

at::Tensor stored_form(const at::Tensor& buffer) {
  at::Tensor values = buffer.detach();
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  return values.resolve_neg();
}

std::vector<std::int64_t> stored_shape(const at::Tensor& buffer) {
  auto shape = buffer.sizes().vec();
  if (buffer.is_complex()) shape.push_back(2);
  return shape;
}

void write_stored(const at::Tensor& buffer, const at::Tensor& values) {
  if (buffer.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const c10::InferenceMode mode(buffer.is_inference());  // such a tensor may be written there only
  at::Tensor source = values.to(buffer.device(), c10::toRealValueType(buffer.scalar_type()));
  source = source.reshape(stored_shape(buffer));
  if (buffer.is_complex()) source = at::view_as_complex(source.contiguous());
  if (!write_in_place(buffer.detach(), source)) buffer.set_data(source.clone());
}

void check_buffers(const Inventory& inventory) {
  std::map<const void*, std::string> parameters;
  for (const auto& item : inventory.parameters) {
    if (item.tensor.has_storage() && item.tensor.numel() > 0) {
      parameters.emplace(storage_of(item.tensor), item.name);
    }
  }
  for (const auto& buffer : inventory.buffers) {
    const at::Tensor& tensor = buffer.tensor;
    if (tensor.layout() != at::kStrided || tensor.is_nested()) {
      refuse(buffer,
             fmt::format("is {}, which cannot be kept the same on all ranks nor saved",
                         tensor.is_nested() ? "a nested tensor" : "a sparse or packed tensor"),
             "register its dense parts (indices and values) and put it together in forward");
    }
    if (tensor.is_quantized()) {
      refuse(buffer, "is quantised, which checkpoints cannot hold",
             "register its int_repr(), scale and zero point and put it together in forward");
    }
    if (tensor.is_meta()) {
      refuse(buffer, "is on the device 'meta' and has no values", "make it on the CPU");
    }
    if (!has_element_type(c10::toRealValueType(tensor.scalar_type()))) {
      refuse(buffer, fmt::format("is of dtype {}, which checkpoints cannot hold", c10::toString(tensor.scalar_type())),
             "register it as a floating-point, integer, bool or complex tensor");
    }
    const auto shared = tensor.numel() > 0 ? parameters.find(storage_of(tensor)) : parameters.end();
    if (shared != parameters.end()) {
      refuse(buffer,
             fmt::format("shares memory with parameter '{}', whose memory becomes the engine's: the buffer would "
                         "keep the first values",
                         shared->second),
             "register a clone() of it, or make it from the parameter in forward");
    }
  }
}

std::vector<std::string> convert_buffers(const Inventory& inventory, DType param_dtype,
                                         Config::Zerotorch::BufferDtype wanted) {
  std::vector<std::string> kept;
  if (param_dtype == DType::kFloat32) return kept;
  const at::NoGradGuard no_grad;
  const auto dtype = device::to_scalar_type(param_dtype);
  ConvertedStorages storages(inventory);
  for (const auto& buffer : inventory.buffers) {
    if (!buffer.tensor.is_floating_point() || buffer.tensor.scalar_type() == dtype) continue;
    if (wanted == Config::Zerotorch::BufferDtype::kParameters || buffer.in_parameter_dtype) {
      storages.convert(buffer, dtype);
    } else {
      kept.push_back(buffer.name);
    }
  }
  return kept;
}

std::string kept_buffers_notice(const std::vector<std::string>& kept) {
  return fmt::format(
      "zerotorch.buffer_dtype: mixed precision leaves {} floating-point buffer{} in the module's dtype: {}; "
      "an operator that "
      "then meets two dtypes needs a to() in forward, or \"buffer_dtype\": \"parameters\"",
      kept.size(), kept.size() == 1 ? "" : "s", checkpoint::some_of(kept));
}

void broadcast_buffers(const Inventory& inventory, Group& group) {
  if (group.size() == 1) return;
  for (const auto& buffer : inventory.buffers) {
    if (buffer.tensor.numel() == 0) continue;
    const at::Tensor values = stored_form(buffer.tensor).contiguous().cpu();
    const bool is_its_memory = buffer.tensor.is_cpu() && values.const_data_ptr() == buffer.tensor.const_data_ptr();
    group
        .broadcast(values.mutable_data_ptr(), static_cast<std::int64_t>(values.nbytes()), DType::kByte, 0,
                   {.label = buffer.name})
        .wait();
    if (!is_its_memory) write_stored(buffer.tensor, values);
  }
}

BufferSync::BufferSync(std::vector<Inventory::Named> buffers, Mode mode) : buffers_(std::move(buffers)), mode_(mode) {
  for (const auto& buffer : buffers_) marks_.push_back(mark_of(buffer.tensor));
}

BufferSync::Mark BufferSync::mark_of(const at::Tensor& buffer) {
  constexpr std::int64_t kPieces = 64, kPieceNbytes = 1024;
  Mark mark;
  mark.version = buffer.is_inference() ? 0 : buffer._version();
  mark.storage = storage_of(buffer);
  mark.dtype = buffer.scalar_type();
  mark.sizes = buffer.sizes().vec();
  if (buffer.numel() == 0 || !buffer.is_cpu()) return mark;
  std::int64_t nbytes = static_cast<std::int64_t>(buffer.element_size());
  for (std::int64_t d = 0; d < buffer.dim(); ++d) {
    nbytes += (buffer.size(d) - 1) * buffer.stride(d) * static_cast<std::int64_t>(buffer.element_size());
  }
  const auto* bytes = static_cast<const std::byte*>(buffer.const_data_ptr());
  if (nbytes <= kPieces * kPieceNbytes) {
    mark.fingerprint = XXH3_64bits(bytes, static_cast<std::size_t>(nbytes));
    return mark;
  }
  for (std::int64_t piece = 0; piece < kPieces; ++piece) {
    const std::int64_t offset = (nbytes - kPieceNbytes) / (kPieces - 1) * piece;
    mark.fingerprint = XXH3_64bits_withSeed(bytes + offset, kPieceNbytes, mark.fingerprint);
  }
  return mark;
}

bool BufferSync::changed() const {
  if (!needed()) return false;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (mark_of(buffers_[b].tensor) != marks_[b]) return true;
  }
  return false;
}

void BufferSync::synchronise(Group& group) {
  if (!needed() || group.size() == 1) return;
  constexpr std::int64_t kWritten = 1, kOtherLayout = 2;
  std::vector<std::int64_t> states(buffers_.size(), 0);
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Mark now = mark_of(buffers_[b].tensor);
    if (now == marks_[b]) continue;
    const bool same_layout = now.dtype == marks_[b].dtype && now.sizes == marks_[b].sizes;
    states[b] = same_layout ? kWritten : kOtherLayout;
  }
  group
      .all_reduce(states.data(), static_cast<std::int64_t>(states.size()), DType::kInt64, ReduceOp::kMax,
                  {.label = "written buffers"})
      .wait();
  if (std::ranges::find(states, kOtherLayout) != states.end()) check_layouts(group);
  Inventory written;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (states[b] == 0) continue;
    if (mode_ == Mode::kMean && has_floats(buffers_[b].tensor)) {
      take_mean(buffers_[b], group);
    } else {
      written.buffers.push_back(buffers_[b]);
    }
  }
  broadcast_buffers(written, group);
  for (std::size_t b = 0; b < buffers_.size(); ++b) marks_[b] = mark_of(buffers_[b].tensor);
}

void BufferSync::check_layouts(Group& group) const {
  std::string text;
  for (const auto& buffer : buffers_) {
    text += fmt::format("buffer '{}' {} [{}]\n", buffer.name, c10::toString(buffer.tensor.scalar_type()),
                        fmt::join(buffer.tensor.sizes(), ", "));
  }
  if (const auto difference = first_difference(text, group, "buffers")) {
    throw ModelError(fmt::format(
        "step(): a buffer has other sizes or another dtype on some ranks: {}; give it the same ones on every "
        "rank, or set zerotorch.buffers to \"each\"",
        *difference));
  }
}

void BufferSync::take_mean(const Inventory::Named& buffer, Group& group) const {
  if (buffer.tensor.numel() == 0) return;
  const at::Tensor values = stored_form(buffer.tensor);
  at::Tensor sums = at::empty(values.sizes(), at::TensorOptions().dtype(at::kDouble));
  {
    const at::NoGradGuard no_grad;
    sums.copy_(values);
  }
  group.all_reduce(sums.mutable_data_ptr(), sums.numel(), DType::kFloat64, ReduceOp::kSum, {.label = buffer.name})
      .wait();
  write_stored(buffer.tensor, sums.div_(group.size()));
}

}  // namespace zero::engine
