#pragma once
// ParameterWrites: values that the program writes into parameters itself, in place or by set_data: masks in forward,
// an embedding's max_norm, weight clipping, initialisation that depends on data.
//
// A write goes to this rank's own copy of the parameter, which the module reads from then on. When ranks agree
// next (the end of the micro-batch, a call that reads full weights) the copies become the parameter: an element
// that some ranks have changed takes their value, which must be the same on each. The fp32 masters follow where
// values have changed.
#include <map>
#include <set>
#include <span>
#include <vector>

#include "sharding/sharded_model.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {

class ParameterStore;
class ShardedOptimizer;

class ParameterWrites {
 public:
  ParameterWrites(ShardedModel& model, storage::Ledger& ledger) : model_(model), ledger_(ledger) {}

  /// The parameter's own copy gets the values at `values`, flat, and the module sees it from here on. Local.
  void begin(int parameter, const void* values);
  /// As begin(), with the values of a tensor that was put in the parameter's place (set_data). Local.
  void take_over(int parameter, const at::Tensor& values, intercept::UseObserver* observer);

  /// Own copies of these are of a scope that drops them: they become no parameter. Local.
  void set_to_be_dropped(std::span<const int> parameters, bool to_be_dropped);
  /// Forgets a parameter's own copy, which the module still sees. Local.
  void drop(int parameter) { copies_.erase(parameter); }

  /// Before the first write into `memory`, where all have the parameter: its values, for take_back(). Local.
  void keep_original(int parameter, const void* memory);
  /// Writes them there again; nothing where none were kept. Local.
  void take_back(int parameter, void* memory);
  void forget_original(int parameter) { originals_.erase(parameter); }
  /// Writes the values of a parameter's own copy to `memory`, where all have it. Local.
  void copy_to(int parameter, void* memory) const;

  bool has(int parameter) const { return !copies_.empty() && copies_.contains(parameter); }
  /// Of a parameter that has a copy: its memory.
  bool is_to_be_dropped(int parameter) const { return to_be_dropped_.contains(parameter); }
  std::shared_ptr<void> keep_alive(int parameter) const { return copies_.at(parameter).keep_alive(); }
  /// True when there is nothing to commit on this rank.
  bool empty() const;

  /// *Collective.* The copies of all ranks become the parameters. Throws ModelError on every rank when two ranks
  /// have written different values to one element.
  void commit(ParameterStore& store, ShardedOptimizer& optimizer);
  /// Of all values so far that became those of replicated parameters: the same on all model-parallel ranks, if their
  /// programs have written the same.
  std::uint64_t replicated_hash() const { return replicated_hash_; }

 private:
  /// In the memory that the module reads.
  storage::FlatBuffer make(int parameter);
  /// Within that memory.
  void copy(void* out, const void* in, const storage::FlatBuffer& size_of) const;
  storage::FlatBuffer& copy_of(int parameter);
  /// The parameters that any rank has written. *Collective.*
  std::vector<int> written_by_any();
  void merge(int parameter, const at::Tensor& current) const;

  ShardedModel& model_;
  storage::Ledger& ledger_;
  std::map<int, storage::FlatBuffer> copies_, originals_;
  std::set<int> to_be_dropped_;
  std::uint64_t replicated_hash_ = 0;
};

}  // namespace zero::sharding
