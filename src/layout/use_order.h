#pragma once
// UseOrder: remembers in which order units are used and predicts what comes next and how far away the
// next use of a unit is. A pure function of the history of uses, so that all ranks predict alike.
//
// A *context* is (previous unit, unit, phase); the same context is expected to be followed by the same
// next one as last time. That covers forward, backward, recomputation and evaluation without knowing
// where a pass begins or ends, and follows a changed order by itself.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace zero::layout {

class UseOrder {
 public:
  /// `unit_numel[u]`: what a use of unit u adds to reuse distances.
  explicit UseOrder(std::vector<std::int64_t> unit_numel);

  /// Notes the use of `unit`; repeated uses of the current unit are one. `phase` tells passes apart
  /// (0 forward, 1 backward).
  void use(int unit, int phase);

  struct Prediction {
    int unit = -1;  ///< -1: not known
    int phase = 0;
    bool operator==(const Prediction&) const = default;
  };
  /// What is expected after the current use, `ahead` (>= 1) uses on. Costs `ahead` steps.
  Prediction predict(int ahead) const;

  /// The uses expected after the current one, one after the other, at the cost of a step each. Valid until the
  /// next use().
  class Walk {
   public:
    explicit Walk(const UseOrder& order) : order_(order), context_(order.current_context_) {}
    Prediction next();

   private:
    const UseOrder& order_;
    int context_;
  };

  /// Elements of other units expected to be used between the last use of `unit` and its next one;
  /// -1 when not known.
  std::int64_t reuse_distance(int unit) const;

  int current() const { return current_unit_; }
  int current_phase() const { return current_phase_; }

 private:
  struct Context {
    int unit = -1;
    int phase = 0;
    int next = -1;  ///< context index
    std::int64_t reuse_distance = -1;
  };

  std::vector<std::int64_t> unit_numel_;
  std::map<std::tuple<int, int, int>, int> index_of_;
  std::vector<Context> contexts_;
  std::vector<int> last_context_of_;            ///< by unit
  std::vector<std::int64_t> last_position_of_;  ///< by unit, in elements used so far
  std::int64_t position_ = 0;
  int current_unit_ = -1;
  int current_phase_ = -1;
  int current_context_ = -1;
};

}  // namespace zero::layout
