#include "intercept/kept_results.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <xxhash.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "intercept/parameter_handle.h"
#include "intercept/second_run.h"

namespace zero::intercept {
namespace {

thread_local ResultTape* t_tape = nullptr;

/// While alive, what an operator is made of is no operator of the part.
class Nested {
 public:
  Nested() : before_(std::exchange(t_tape, nullptr)) {}
  ~Nested() { t_tape = before_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  ResultTape* before_;
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return XXH3_64bits_withSeed(&value, sizeof value, hash);
}

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Which of a parameter's elements a view has.
std::uint64_t geometry_of(const at::Tensor& tensor) {
  std::uint64_t hash = static_cast<std::uint64_t>(tensor.storage_offset());
  for (const std::int64_t size : tensor.sizes()) hash = mixed(hash, static_cast<std::uint64_t>(size));
  for (const std::int64_t stride : tensor.strides()) hash = mixed(hash, static_cast<std::uint64_t>(stride));
  return hash;
}

/// Of a parameter which one it is: its version is compared by who runs the part again. Else of its values.
std::uint64_t hash_of_argument(const at::Tensor& tensor) {
  if (!tensor.defined()) return 1;
  const at::Tensor root = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  if (const auto* handle = ParameterHandle::of(root))
    return mixed(geometry_of(tensor), static_cast<std::uint64_t>(handle->parameter()));
  if (root.is_leaf() && root.requires_grad())
    return mixed(geometry_of(tensor), reinterpret_cast<std::uintptr_t>(root.unsafeGetTensorImpl()));
  return hash_of(tensor);
}
std::uint64_t hash_of_argument(const at::Scalar& value) {
  return value.isComplex() ? mixed(bits_of(value.toComplexDouble().real()), bits_of(value.toComplexDouble().imag()))
                           : bits_of(value.toDouble());
}
std::uint64_t hash_of_argument(double value) { return bits_of(value); }
std::uint64_t hash_of_argument(bool value) { return value ? 2 : 3; }
std::uint64_t hash_of_argument(const c10::SymInt& value) {
  return static_cast<std::uint64_t>(value.maybe_as_int().value_or(-1));
}
std::uint64_t hash_of_argument(c10::SymIntArrayRef values) {
  std::uint64_t hash = values.size();
  for (const c10::SymInt& value : values) hash = mixed(hash, hash_of_argument(value));
  return hash;
}
template <class T>
std::uint64_t hash_of_argument(const std::optional<T>& value) {
  return value ? mixed(4, hash_of_argument(*value)) : 5;
}

/// Of a result, which lies as it lay: without the copy that hash_of() makes of what is transposed.
std::uint64_t hash_of_memory(const at::Tensor& tensor) {
  const bool is_one_piece = tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense();
  return is_one_piece ? XXH3_64bits(tensor.const_data_ptr(), tensor.nbytes()) : hash_of(tensor);
}

/// Its memory alone.
at::Tensor without_graph(const at::Tensor& tensor) { return tensor.variable_data(); }

}  // namespace

/// What an operator does where there is a tape.
class TapedOperator {
 public:
  TapedOperator(ResultTape& tape, const char* name, std::uint64_t inputs) : tape_(tape), name_(name), inputs_(inputs) {}

  static bool wants(const ResultTape& tape, KeptResults kind) { return tape.keep_ >= kind; }

  template <class Compute>
  auto operator()(const Compute& compute) {
    using Result = decltype(compute());
    if (tape_.gives_) {
      Result result;
      if (give(result)) return result;
      const Nested nested;
      return compute();
    }
    Result result = [&] {
      const Nested nested;
      return compute();
    }();
    keep(result);
    return result;
  }

 private:
  void keep(const at::Tensor& result) {
    TapedResult kept{.name = name_, .inputs = inputs_};
    if (!result.defined() || result.is_inference()) {
      tape_.results_.push_back(kept);
      tape_.values_.emplace_back();
      return;
    }
    kept.version = result.unsafeGetTensorImpl()->version_counter();
    kept.version_then = kept.version.current_version();
    kept.values = hash_of_memory(result);
    tape_.results_.push_back(kept);
    tape_.values_.push_back(without_graph(result));
  }
  template <class... T>
  void keep(const std::tuple<T...>& results) {
    std::apply([&](const auto&... result) { (keep(result), ...); }, results);
  }

  bool give(at::Tensor& result) {
    if (tape_.next_ == tape_.results_.size()) is_another_run("ran more operators");
    const std::size_t at = tape_.next_++;
    const TapedResult& kept = tape_.results_[at];
    if (std::string_view(kept.name) != name_) is_another_run(fmt::format("ran {} in place of {}", name_, kept.name));
    if (kept.inputs != inputs_) is_another_run(fmt::format("gave other values to {}", name_));
    if (!tape_.is_there(at)) return false;
    result = without_graph(tape_.values_[at]);
    return true;
  }
  template <class... T>
  bool give(std::tuple<T...>& results) {
    return std::apply([&](auto&... result) { return (static_cast<int>(give(result)) & ...) != 0; }, results);
  }

  ResultTape& tape_;
  const char* name_;
  std::uint64_t inputs_;
};

namespace {

template <class Operator, KeptResults kKind, class Schema = typename Operator::schema>
struct Kernel;
template <class Operator, KeptResults kKind, class Result, class... Arguments>
struct Kernel<Operator, kKind, Result(Arguments...)> {
  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const c10::DispatchKeySet below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    ResultTape* tape = t_tape;
    if (!tape || !TapedOperator::wants(*tape, kKind)) return Operator::redispatch(below, arguments...);
    std::uint64_t inputs = 0;
    ((inputs = mixed(inputs, hash_of_argument(arguments))), ...);
    return TapedOperator(*tape, Operator::name, inputs)([&] { return Operator::redispatch(below, arguments...); });
  }
};

template <class Operator, KeptResults kKind>
void add(torch::Library& library) {
  library.impl(Operator::name, TORCH_FN((Kernel<Operator, kKind>::run)));
}

/// Kernels for the rest of the program's life, which pass every call on while there is no tape.
void register_kernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  static const bool once = [] {
    using namespace at::_ops;
    add<_scaled_dot_product_flash_attention_for_cpu, KeptResults::kAttention>(library);
    add<mm, KeptResults::kProducts>(library);
    add<addmm, KeptResults::kProducts>(library);
    add<bmm, KeptResults::kProducts>(library);
    add<baddbmm, KeptResults::kProducts>(library);
    add<convolution, KeptResults::kProducts>(library);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

ResultTape::ResultTape(KeptResults keep) : keep_(keep), outer_(t_tape) {
  if (keep != KeptResults::kNone) register_kernels();
  t_tape = keep == KeptResults::kNone ? nullptr : this;
}

ResultTape::ResultTape(KeptResults keep, std::vector<TapedResult> results, std::vector<at::Tensor> values)
    : keep_(keep), gives_(true), results_(std::move(results)), values_(std::move(values)), outer_(t_tape) {
  t_tape = keep == KeptResults::kNone ? nullptr : this;
}

ResultTape::~ResultTape() { t_tape = outer_; }

void ResultTape::check_end() const {
  if (next_ != results_.size()) is_another_run("ran fewer operators");
}

bool ResultTape::is_there(std::size_t at) const {
  return has_same_version(at) && hash_of_memory(values_[at]) == results_[at].values;
}

bool ResultTape::has_same_version(std::size_t at) const {
  return values_[at].defined() && results_[at].version.current_version() == results_[at].version_then;
}

bool is_given_next(std::string_view name) {
  return t_tape && t_tape->gives_ && t_tape->next_ < t_tape->results_.size() &&
         name == t_tape->results_[t_tape->next_].name && t_tape->is_there(t_tape->next_);
}

std::vector<at::Tensor> ResultTape::take_values() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!has_same_version(i)) values_[i].reset();  // their bytes are looked at when they are given
  }
  return std::move(values_);
}

}  // namespace zero::intercept
