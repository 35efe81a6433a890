#pragma once
// RawWriteCheck: finds parameters that a program has written past libtorch, through data_ptr(), an accessor or
// from_blob. No counter tells of such a write, and on several ranks it would be lost or seen by others at any time.
#include <cstdint>
#include <vector>

#include "observe/step_observer.h"
#include "sharding/sharded_model.h"

namespace zero::observe {

class RawWriteCheck final : public StepObserver {
 public:
  explicit RawWriteCheck(const sharding::ShardedModel& model);

  /// Throws ModelError naming the first parameter whose values are others than at the end of the last step, though
  /// nothing that libtorch or the engine knows of has written it. Reads all parameters that are whole on this rank.
  void before_step() override;
  void end_step(std::int64_t, bool) override { remember(); }

 private:
  void remember();
  /// Of a parameter; `hash` means something while the rest stays.
  struct Mark {
    const void* data = nullptr;  ///< null: not whole here
    std::uint32_t version = 0;
    std::uint64_t hash = 0;
  };
  Mark mark_of(const sharding::Parameter& parameter) const;

  const sharding::ShardedModel& model_;
  std::vector<Mark> marks_;
};

}  // namespace zero::observe
