#pragma once
// Results of some operators of a part that runs twice: kept in the first run, given in the second instead of computed.
//
// That happens below autograd, so that the second run makes the same graph. The operators get kernels of ours at
// BackendSelect, the one key between autograd and the backends that every call passes and that libtorch uses for
// factories only; they are registered when the first part asks for them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "zero/recompute.h"

namespace zero::intercept {

/// A result, without its memory.
struct TapedResult {
  const char* name = "";         ///< the operator's
  std::uint64_t inputs = 0;      ///< a hash of the arguments: values, and which parameters
  std::uint64_t values = 0;      ///< a hash; views of some operators (matmul's, for one) have versions of their own
  c10::VariableVersion version;  ///< of the tensor the program has
  std::uint32_t version_then = 0;
};

/// While alive, the calling thread's operators give their results to this, or take them from it. One inside another
/// takes its place.
class ResultTape {
 public:
  /// Keeps results of these operators.
  explicit ResultTape(KeptResults keep);
  /// Gives `values`, and computes what has been changed since. Throws ModelError (from the operator) where others run.
  ResultTape(KeptResults keep, std::vector<TapedResult> results, std::vector<at::Tensor> values);
  ~ResultTape();
  ResultTape(const ResultTape&) = delete;
  ResultTape& operator=(const ResultTape&) = delete;

  /// After a second run: all that was kept had its turn. Throws ModelError.
  void check_end() const;
  /// After a first run: what was kept, and its memory (undefined: changed in place, no use).
  std::vector<TapedResult> take_results() { return std::move(results_); }
  std::vector<at::Tensor> take_values();

 private:
  friend class TapedOperator;
  friend bool is_given_next(std::string_view name);
  /// Nobody has changed it since.
  bool is_there(std::size_t at) const;
  bool has_same_version(std::size_t at) const;
  KeptResults keep_;
  bool gives_ = false;
  std::size_t next_ = 0;
  std::vector<TapedResult> results_;
  std::vector<at::Tensor> values_;
  ResultTape* outer_;
};

/// Whether the calling thread's operator of this name, which is about to run, will be given its result and compute
/// nothing.
bool is_given_next(std::string_view name);

}  // namespace zero::intercept
