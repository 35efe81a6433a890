#include "products/registry.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/ones.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "products/matrix_product.h"
#include "zero/cpu_products.h"
#include "zero/errors.h"

namespace zero::products {
namespace {

/// Scopes that live, of each dtype and way.
struct Holders {
  std::atomic<int> native{0}, in_fp32{0};
  std::atomic<int>& of(CpuProducts way) { return way == CpuProducts::kFp32 ? in_fp32 : native; }
};

std::array<Holders, 2>& all_holders() {
  static std::array<Holders, 2> holders;
  return holders;
}

Holders& holders_of(DType dtype) {
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16)
    throw ConfigError(
        fmt::format("CpuProductsScope: {} products are libtorch's own; want bf16 or fp16", dtype_name(dtype)));
  return all_holders()[dtype == DType::kBFloat16 ? 0 : 1];
}

std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}

/// libtorch warns of every kernel that replaces one of its own.
class Quiet : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// For the rest of the process: what is not taken goes to the kernels that were there.
void register_once() {
  static const bool registered = [] {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    // Never freed: a program may compute until its very end.
    auto* cpu = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    auto* autograd =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
    register_matrix_products(*cpu);
    register_attention(*cpu);
    register_convolutions(*cpu);
    register_recurrent(*cpu, *autograd);
    return true;
  }();
  (void)registered;
}

/// In seconds.
using Clock = double (*)();

double wall_time() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Whether libtorch's products of this dtype use instructions for it. Not known of other processors. No measurement:
/// the two ways round differently, and a run must have the same bits whatever else the machine does.
std::optional<bool> has_instructions(DType dtype) {
#ifdef ZERO_X86_KERNELS
  // All processors with AMX for the dtype have these, too.
  const bool is_there =
      dtype == DType::kBFloat16 ? __builtin_cpu_supports("avx512bf16") != 0 : __builtin_cpu_supports("avx512fp16") != 0;
  if (!is_there || !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn()) return false;
  std::string limit;  // of oneDNN
  for (const char* const name : {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"}) {
    if (const char* const value = std::getenv(name)) limit = value;
  }
  for (char& letter : limit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  constexpr std::string_view kWithout[] = {"SSE41",           "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE",
                                           "AVX512_CORE_VNNI"};
  if (std::ranges::find(kWithout, limit) != std::end(kWithout)) return false;
  return dtype == DType::kBFloat16 || limit != "AVX512_CORE_BF16";
#else
  (void)dtype;
  return std::nullopt;
#endif
}

/// Runs both by turns, and returns how long the fastest run of each takes.
template <class F, class G>
std::pair<double, double> seconds_of(const F& f, const G& g, int runs, Clock clock) {
  const auto time = [clock](const auto& one, double& best) {
    const double begin = clock();
    one();
    best = std::min(best, clock() - begin);
  };
  f();  // kernels that are made at their first use
  g();
  std::pair<double, double> best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (int run = 0; run < runs; ++run) {
    time(f, best.first);
    time(g, best.second);
  }
  return best;
}

ProductSpeed measure(DType dtype, int edge, int runs, Clock clock) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool narrow = dtype != DType::kFloat32;
  if (narrow) holders_of(dtype);
  const at::ScalarType type = dtype == DType::kFloat32    ? at::kFloat
                              : dtype == DType::kBFloat16 ? at::kBFloat16
                                                          : at::kHalf;
  const at::Tensor a = at::ones({edge, edge}, type), b = at::ones({edge, edge}, type), out = at::empty_like(a);
  const at::Tensor at = a.t(), bt = b.t();
  const double operations = 3 * 2.0 * edge * edge * edge;
  // Forward of a linear layer, and the gradients of its input and its weight.
  const auto native = [&] {
    at::cpu::mm(a, bt);
    at::cpu::mm(a, b);
    at::cpu::mm(at, b);
  };
  const auto in_fp32 = [&] {
    if (!narrow) return;
    multiply(a, bt, {}, 1, out);
    multiply(a, b, {}, 1, out);
    multiply(at, b, {}, 1, out);
  };
  const auto [native_s, in_fp32_s] = seconds_of(native, in_fp32, runs, clock);
  return {operations / native_s, narrow ? operations / in_fp32_s : 0};
}

}  // namespace

bool is_taken(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return all_holders()[0].in_fp32.load(std::memory_order_relaxed) > 0;
  if (dtype == at::kHalf) return all_holders()[1].in_fp32.load(std::memory_order_relaxed) > 0;
  return false;
}

}  // namespace zero::products

namespace zero {

using products::holders_of;

ProductSpeed measure_cpu_products(DType dtype, int edge) {
  return products::measure(dtype, edge, /*runs=*/3, &products::wall_time);
}

CpuProducts faster_cpu_products(DType dtype) {
  holders_of(dtype);
  static std::array<CpuProducts, 2> faster{CpuProducts::kAuto, CpuProducts::kAuto};
  static std::mutex measuring;
  const std::lock_guard lock(measuring);
  CpuProducts& known = faster[dtype == DType::kBFloat16 ? 0 : 1];
  if (known != CpuProducts::kAuto) return known;
  if (const auto has = products::has_instructions(dtype)) {
    known = *has ? CpuProducts::kNative : CpuProducts::kFp32;
  } else {
    // Kernels without instructions for the dtype take 10 to 50 times as long as fp32. The time is that of this thread,
    // without others that have its core, and of one thread alone, as several wait for each other.
    constexpr double kLine = 1.7;
    constexpr int kEdge = 128, kRuns = 8;
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const ProductSpeed speed = products::measure(dtype, kEdge, kRuns, &products::time_of_this_thread);
    at::set_num_threads(threads);
    known = speed.in_fp32 > kLine * speed.native ? CpuProducts::kFp32 : CpuProducts::kNative;
  }
  return known;
}

class CpuProductsScope::Impl {
 public:
  Impl(CpuProducts wanted, DType dtype)
      : holders_(holders_of(dtype)),
        dtype_(dtype),
        way_(wanted == CpuProducts::kAuto ? open_or_faster(dtype) : wanted) {
    const std::lock_guard lock(products::mutex());
    const auto other = way_ == CpuProducts::kFp32 ? CpuProducts::kNative : CpuProducts::kFp32;
    if (holders_.of(other) > 0) {
      throw ConfigError(fmt::format(
          "zerotorch.cpu_products: \"{}\", while another engine or scope of this process computes {} products the "
          "other way (\"{}\"), and the choice is for the process: give both the same, or end that one first",
          way_ == CpuProducts::kFp32 ? "fp32" : "native", dtype_name(dtype),
          other == CpuProducts::kFp32 ? "fp32" : "native"));
    }
    if (way_ == CpuProducts::kFp32) products::register_once();
    ++holders_.of(way_);
  }
  ~Impl() { --holders_.of(way_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  CpuProducts way() const { return way_; }
  DType dtype() const { return dtype_; }

 private:
  /// What is open decides for who leaves it open.
  static CpuProducts open_or_faster(DType dtype) {
    products::Holders& holders = holders_of(dtype);
    if (holders.in_fp32 > 0) return CpuProducts::kFp32;
    if (holders.native > 0) return CpuProducts::kNative;
    return faster_cpu_products(dtype);
  }

  products::Holders& holders_;
  DType dtype_;
  CpuProducts way_;
};

CpuProductsScope::CpuProductsScope(CpuProducts wanted, DType dtype) : impl_(std::make_unique<Impl>(wanted, dtype)) {}
CpuProductsScope::~CpuProductsScope() = default;
CpuProductsScope::CpuProductsScope(CpuProductsScope&&) noexcept = default;
CpuProductsScope& CpuProductsScope::operator=(CpuProductsScope&&) noexcept = default;
CpuProducts CpuProductsScope::chosen() const { return impl_->way(); }
DType CpuProductsScope::dtype() const { return impl_->dtype(); }

}  // namespace zero
