#pragma once
// LocalSteps: islands of ranks train apart for some steps, then average what they have learnt (DiLoCo,
// arXiv:2311.08105). ShardedModel::data_ranks are one island. Its shards meet those of the other islands at the end of
// a round: the mean of how far each island has moved is the gradient of an outer SGD with Nesterov momentum, whose
// values all islands go on from.
//
//   begin_step   before an update: the first of a round notes the values that all islands start from
//   exchange     after the last update of a round, before ParameterStore::publish()
//
// The ranks at one place of all islands hold the same shard. Between them its outer values and momentum are sharded
// again, so that a rank keeps 8 bytes for 1/I of its shard's elements, and an exchange is a reduce-scatter and an
// all-gather. Every element is computed by itself, from its islands in their order: the bits depend on the number of
// islands only.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "optim/rule.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {

struct LocalStepsOptions {
  Group across;            ///< the ranks at this one's place, by island
  std::int64_t steps = 1;  ///< of a round
  double lr = 0.7;
  double momentum = 0.9;
  std::int64_t piece_numel = 0;  ///< exchanged at a time (layout/island_pieces.h)
};

class LocalSteps {
 public:
  /// `model`, `optimizer` and `ledger` outlive it. Local. Throws IoError.
  LocalSteps(ShardedModel& model, ShardedOptimizer& optimizer, storage::Ledger& ledger, LocalStepsOptions options);
  ~LocalSteps();

  int island() const { return options_.across.rank(); }
  int islands() const { return options_.across.size(); }
  const Group& across() const { return options_.across; }

  /// What is trained from here on has outer values. Local. Throws IoError.
  void begin_step();
  /// True when a round is over after so many steps of the run.
  bool ends_round(std::int64_t steps) const { return steps % options_.steps == 0; }
  /// Masters, and this rank's part of the store, have the outer values afterwards. `label`: what must be the same on
  /// all ranks. *Collective* over the ranks at this place and over the island. Throws CommError, IoError.
  void exchange(const std::string& label);

  bool has_momentum() const { return options_.momentum > 0; }
  /// True from the first update of a round to its exchange: islands have different values.
  bool in_round() const { return in_round_; }
  /// The next begin_step() begins a round, with the values that there are. Local.
  void restart() { in_round_ = false; }

  /// Elements that this rank has received so far, and in one exchange.
  std::int64_t received_numel() const { return received_numel_; }
  std::int64_t exchange_numel() const;
  /// For the log.
  std::string description() const;

  // ---- Checkpoints ----

  /// Consecutive elements of a unit, and this rank's outer values and momentum of them.
  struct Part {
    int unit;
    Range range;
    float* outer;
    float* momentum;  ///< null: there is none
  };
  /// All of this rank's, in the order of the flat layout. Local. Throws IoError.
  std::vector<Part> parts();
  /// Parts have been read: a round goes on, or the next one begins. Local.
  void resume(bool in_round) { in_round_ = in_round; }

 private:
  struct Segment {
    int unit;
    Range range;         ///< in the unit
    std::int64_t begin;  ///< of all segments one after the other
  };
  /// This rank's shards of units that came to be trained together.
  struct Block {
    std::vector<int> units;
    std::vector<Segment> segments;
    std::int64_t numel = 0;
    storage::FlatBuffer outer, momentum;  ///< of this island's slice of each piece
  };
  struct Slot {
    storage::FlatBuffer memory;
    Work work;
    Range piece;
  };

  void cover_trainable();
  void add_block(std::vector<int> units);
  std::vector<Segment> segments_of(const std::vector<int>& units, int place) const;
  void exchange_block(Block& block, const std::string& label);
  void post(Block& block, Slot& slot, Range piece, const std::string& label);
  void gather(Slot& slot, const std::string& label);
  void take(Block& block, Slot& slot);
  /// Of this island's slice of a piece: outer values and momentum move by the islands' masters.
  void update(Block& block, Range piece, std::span<const void* const> masters, float* result);
  void note_values(Block& block);
  /// Where every rank of an island updates everything: masters of the others' shards follow. *Collective.*
  void spread(const Block& block);

  static float* momentum_at(const Block& block, std::int64_t offset);
  Range piece_of(const Block& block, std::int64_t begin) const;
  Range slice_of(Range piece, int island) const;
  std::int64_t offset_of(Range piece) const;
  std::vector<std::int64_t> counts_of(Range piece) const;
  void copy_masters(const std::vector<Segment>& segments, Range flat, float* out) const;
  void load_masters(const std::vector<Segment>& segments, Range flat, const float* values);
  template <class Visit>
  static void for_each_in(const std::vector<Segment>& segments, Range flat, Visit visit);

  ShardedModel& model_;
  ShardedOptimizer& optimizer_;
  storage::Ledger& ledger_;
  LocalStepsOptions options_;
  std::shared_ptr<comm::ShardTransport> transport_;
  optim::Hyper hyper_;
  const optim::Rule& rule_;
  std::vector<Block> blocks_;
  std::vector<Slot> slots_;
  std::vector<bool> covered_;  ///< by unit
  bool in_round_ = false;
  std::int64_t received_numel_ = 0;
  int process_;
};

}  // namespace zero::sharding
