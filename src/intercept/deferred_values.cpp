#include "intercept/deferred_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "intercept/parameter_handle.h"
#include "zero/errors.h"

namespace zero::intercept {
namespace {

/// Of one storage. With more, as of a loop over rows, the values are written: each holds a generator's state.
constexpr int kMostEntries = 64;

thread_local int g_depth = 0;
thread_local bool g_draws = true;
thread_local at::Tensor g_scratch;

/// A tensor on some storage, without it.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()),
        options(tensor.options().requires_grad(false)) {}

  at::Tensor over(c10::Storage storage) const {
    at::Tensor tensor = at::empty({0}, options);
    return tensor.set_(std::move(storage), offset, sizes, strides);
  }

  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;
  at::TensorOptions options;
};

struct Entry;
using Record = std::shared_ptr<const Entry>;  ///< the last entry; null: nothing was done yet

/// An argument that lies in a deferred storage.
struct DeferredArgument {
  std::size_t index;
  Geometry geometry;
  bool is_own;  ///< in the storage that the entry is about
  Record record;
  std::size_t nbytes;  ///< of its storage
};

/// One operator, as it was called.
struct Entry {
  Record before;
  int count;  ///< of entries up to this one
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  ///< None where they are deferred
  std::vector<DeferredArgument> deferred;
  int generator = -1;
  at::Tensor generator_state;  ///< before it; undefined: nothing is drawn
  bool undrawn;                ///< here or before
};

std::atomic<std::int64_t> g_deferred_storages{0};

/// What a storage's DataPtr carries instead of memory.
struct Deferred : c10::intrusive_ptr_target {
  Deferred() { g_deferred_storages.fetch_add(1, std::memory_order_relaxed); }
  ~Deferred() override { g_deferred_storages.fetch_sub(1, std::memory_order_relaxed); }
  Record record;
};

void drop_deferred(void* context) { c10::raw::intrusive_ptr::decref(static_cast<Deferred*>(context)); }

Deferred* deferred_of(c10::StorageImpl& storage) {
  const auto& pointer = storage._mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &drop_deferred ? static_cast<Deferred*>(pointer.get_context()) : nullptr;
}

Deferred* deferred_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return deferred_of(*tensor.storage().unsafeGetStorageImpl());
}

std::recursive_mutex& writing() {
  static auto& mutex = *new std::recursive_mutex;  // tensors may outlive static objects
  return mutex;
}

void defer(const at::Tensor& tensor) {
  auto deferred = c10::make_intrusive<Deferred>();
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, deferred.release(), &drop_deferred, c10::Device(c10::kCPU)));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::string("a tensor made under zero::DeferredInit has no memory yet, so it cannot be read or written directly: "
                  "use it in an operator (clone() will do), or in a module give it to zero::initialize()"));
  add_parameter_key(tensor);
}

c10::Storage replay(const Record& record, std::size_t nbytes);

void run(const Entry& entry, const c10::Storage& own) {
  torch::jit::Stack stack = entry.arguments;
  for (const DeferredArgument& argument : entry.deferred) {
    stack[argument.index] = argument.geometry.over(argument.is_own ? own : replay(argument.record, argument.nbytes));
  }
  if (entry.generator_state.defined()) {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(entry.generator_state);
    stack[static_cast<std::size_t>(entry.generator)] = std::move(generator);
  }
  entry.op.callBoxed(stack);
}

/// New memory with the values of a record.
c10::Storage replay(const Record& record, std::size_t nbytes) {
  if (record && record->undrawn) {
    throw ModelError(
        "a tensor was made under zero::DeferredInit without initial values, and is read before any were loaded: load "
        "weights or a checkpoint first, or leave out DeferredInitOptions::without_values");
  }
  std::vector<const Entry*> entries;
  for (const Entry* entry = record.get(); entry; entry = entry->before.get()) entries.push_back(entry);
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, c10::GetCPUAllocator(), /*resizable=*/true);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) run(**entry, storage);
  return storage;
}

void write(c10::StorageImpl& storage) {
  const std::lock_guard lock(writing());
  const Deferred* const deferred = deferred_of(storage);
  if (!deferred) return;  // another thread has
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_recursion(kParameterKey);
  c10::Storage written = replay(deferred->record, storage.nbytes());
  storage.set_data_ptr_noswap(written.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU))));
  allow_data_access(storage);
}

template <class Visit>
void each_argument(const torch::jit::Stack& stack, std::size_t first, Visit visit) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor) visit(*tensor);
      }
    }
  }
}

/// Memory with as many elements as `self`, to draw into in its place; reused until the last DeferValues goes.
at::Tensor scratch_like(const at::Tensor& self) {
  if (!self.is_contiguous()) return at::empty_strided(self.sizes(), self.strides(), self.options());
  if (!g_scratch.defined() || g_scratch.scalar_type() != self.scalar_type() || g_scratch.numel() < self.numel()) {
    g_scratch.reset();
    g_scratch = at::empty({self.numel()}, self.options().requires_grad(false));
  }
  return g_scratch.narrow(0, 0, self.numel()).view(self.sizes());
}

/// Runs the operator that random numbers are for, into memory that is used again, so that the generator goes on.
void draw_beside(const c10::OperatorHandle& op, const at::Tensor& self, const torch::jit::Stack& arguments) {
  torch::jit::Stack stack = arguments;
  stack[0] = scratch_like(self);
  op.callBoxed(stack);
}

/// Adds the operator to the record of its first argument. False: it cannot be recorded.
bool record(const c10::OperatorHandle& op, const DeferredOp& info, torch::jit::Stack& stack, std::size_t first) {
  const at::Tensor self = stack[first].toTensor();
  Deferred* const own = deferred_of(self);
  if (!own || (at::GradMode::is_enabled() && self.requires_grad())) return false;
  const int count = own->record ? own->record->count + 1 : 1;
  if (count > kMostEntries) return false;
  Entry entry{own->record, count, op, {stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end()},
              {},          -1,    {}, own->record && own->record->undrawn};
  for (std::size_t i = 0; i < entry.arguments.size(); ++i) {
    c10::IValue& value = entry.arguments[i];
    if (!value.isTensor()) {
      if (value.isTensorList() || value.isOptionalTensorList()) return false;
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) continue;
    if (const Deferred* const other = deferred_of(tensor)) {
      entry.deferred.push_back({i, Geometry(tensor), other == own, other->record, tensor.storage().nbytes()});
      entry.undrawn = entry.undrawn || (other->record && other->record->undrawn);
      continue;
    }
    // Whoever has it may change it before the record is carried out.
    if (ParameterHandle::of(tensor) || tensor.nbytes() >= kDeferredNbytes || !tensor.device().is_cpu()) return false;
    value = tensor.detach().clone();
  }
  if (info.generator >= 0) {
    if (entry.deferred.size() > 1) return false;  // what is drawn depends on more than the generator
    const auto g = static_cast<std::size_t>(info.generator);
    entry.generator = info.generator;
    if (g_draws) {
      at::Generator generator =
          entry.arguments[g].isNone() ? at::detail::getDefaultCPUGenerator() : entry.arguments[g].toGenerator();
      {
        const std::lock_guard lock(generator.mutex());
        entry.generator_state = generator.get_state();
      }
      draw_beside(op, self, entry.arguments);
    } else {
      entry.undrawn = true;
    }
  }
  for (const DeferredArgument& argument : entry.deferred) entry.arguments[argument.index] = c10::IValue();
  own->record = std::make_shared<const Entry>(std::move(entry));
  self.unsafeGetTensorImpl()->bump_version();
  stack.resize(first);
  stack.emplace_back(self);
  return true;
}

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParameterKey), &stack);
}

/// Without memory from here on, if it is worth it.
void make_empty(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_recursion(kParameterKey);
  redispatch(op, keys, stack);
  const at::Tensor made = stack.back().toTensor();
  const bool plain =
      made.layout() == at::kStrided && made.device().is_cpu() && !made.is_quantized() && !made.is_inference();
  if (plain && made.storage().nbytes() >= kDeferredNbytes) defer(made);
}

template <std::size_t kCount>
bool is_among(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

DeferValues::DeferValues(bool draw) : drew_before_(std::exchange(g_draws, draw)) { ++g_depth; }
DeferValues::~DeferValues() {
  --g_depth;
  g_draws = drew_before_;
  if (g_depth == 0) g_scratch.reset();
}

bool defers_values() { return g_depth > 0; }
bool deferred_values_exist() { return g_deferred_storages.load(std::memory_order_relaxed) != 0; }
bool is_deferred(const at::Tensor& tensor) { return deferred_of(tensor) != nullptr; }

bool is_undrawn(const at::Tensor& tensor) {
  const Deferred* const deferred = deferred_of(tensor);
  return deferred && deferred->record && deferred->record->undrawn;
}

void write_values(const at::Tensor& tensor) {
  if (is_deferred(tensor)) write(*tensor.storage().unsafeGetStorageImpl());
}

DeferredOp deferred_op_of(const c10::OperatorHandle& op) {
  using Kind = DeferredOp::Kind;
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  static constexpr std::array<std::string_view, 2> kEmpty = {"aten::empty", "aten::empty_strided"};
  static constexpr std::array<std::string_view, 24> kMadeOf = {"aten::empty_like",
                                                               "aten::new_empty",
                                                               "aten::new_empty_strided",
                                                               "aten::zeros",
                                                               "aten::zeros_like",
                                                               "aten::new_zeros",
                                                               "aten::ones",
                                                               "aten::ones_like",
                                                               "aten::new_ones",
                                                               "aten::full",
                                                               "aten::full_like",
                                                               "aten::new_full",
                                                               "aten::rand",
                                                               "aten::randn",
                                                               "aten::rand_like",
                                                               "aten::randn_like",
                                                               "aten::normal",
                                                               "aten::to",
                                                               "aten::_to_copy",
                                                               "aten::clone",
                                                               "aten::contiguous",
                                                               "aten::type_as",
                                                               "aten::normal_functional",
                                                               "aten::randint"};
  if (is_among(name, kEmpty)) return {Kind::kMakesEmpty, -1};
  // Of normal(), the overloads that take tensors read them, and draw at once.
  const bool reads = name == "aten::normal" && schema.overload_name() != "float_float";
  if (is_among(name, kMadeOf) && !reads) return {Kind::kIsMadeOf, -1};
  const auto& arguments = schema.arguments();
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  };
  const bool in_place = name.starts_with("aten::") && name.ends_with('_') && !name.ends_with("__") &&
                        schema.returns().size() == 1 && !arguments.empty() && writes(arguments[0]) &&
                        std::none_of(arguments.begin() + 1, arguments.end(), writes) &&
                        !op.hasTag(at::Tag::inplace_view);
  if (!in_place || name == "aten::requires_grad_") return {};
  DeferredOp info{Kind::kWrites, -1};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") info.generator = static_cast<int>(i);
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded) && info.generator < 0) return {};
  return info;
}

bool run_deferred(const c10::OperatorHandle& op, const DeferredOp& info, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack) {
  using Kind = DeferredOp::Kind;
  const std::size_t first = stack.size() - op.schema().arguments().size();
  bool of_engine = false, deferred = false;
  each_argument(stack, first, [&](const at::Tensor& tensor) {
    of_engine = of_engine || ParameterHandle::of(tensor);
    deferred = deferred || is_deferred(tensor);
  });
  if (!of_engine && info.kind == Kind::kMakesEmpty && defers_values()) {
    make_empty(op, keys, stack);
    return true;
  }
  if (!of_engine && info.kind == Kind::kIsMadeOf) {
    redispatch(op, keys, stack);
    return true;
  }
  if (!deferred) return false;
  const c10::impl::ExcludeDispatchKeyGuard no_recursion(kParameterKey);
  if (info.kind == Kind::kWrites && defers_values() && record(op, info, stack, first)) return true;
  each_argument(stack, first, [](const at::Tensor& tensor) { write_values(tensor); });
  return false;
}

}  // namespace zero::intercept
