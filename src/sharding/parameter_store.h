#pragma once
// ParameterStore: holds the low-precision parameters, and makes them whole for the module.
//
// State of a unit on this rank, and its memory:
//   released   only the shard                        S elements
//   gathering  a buffer is being filled              S + U
//   gathered   parameters are attached to the buffer S + U
//   resident   always whole, no separate shard       U
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/disk_store.h"
#include "sharding/parameter_writes.h"
#include "sharding/sharded_model.h"
#include "sharding/timeline.h"
#include "sharding/unit_gatherer.h"

namespace zero::sharding {

class ParameterStore : public intercept::UseObserver {
 public:
  ParameterStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline);
  ~ParameterStore() override = default;

  /// The part of `unit` that this rank may write and others rely on: its shard, or the whole unit if every rank keeps
  /// and updates its own copy.
  virtual Range writable_range(int unit) const = 0;
  /// Calls `lease(piece, low)` for pieces of `range`, which lies in writable_range(unit): `low` points to the piece's
  /// values, readable during the call, and writable with Access::kUpdate. Allocates nothing. Local. Throws IoError.
  using Access = offload::ShardStore::Access;
  using Lease = c10::function_ref<void(Range piece, void* low)>;
  virtual void visit(int unit, Range range, Access access, Lease lease) = 0;
  /// Pointer to the values of `range` (as above), for copying or filling; null unless they are always in memory. Valid
  /// as long as the store.
  virtual void* in_memory(int unit, Range range) = 0;

  /// *Collective.* Called once after every rank has written its initial values.
  virtual void start() = 0;
  /// *Collective order.* Completes everything under way, so that shards may be written after the next
  /// collective.
  virtual void quiesce() = 0;
  /// Returns when the updated values of parameters that are always whole have come: the program may read their memory
  /// without an operator. *Local.* Throws CommError.
  virtual void finish_publication() {}
  /// Called within an update, when what this rank writes of `unit` is as it will be published: what needs no other rank
  /// may go on already. Local.
  virtual void updated(int unit) { (void)unit; }
  /// *Collective.* Called after writable ranges were written: makes the new values visible to every rank, in every use
  /// from here on. Leaves out frozen units unless `frozen_too`; then they are in memory when it returns.
  virtual void publish(bool frozen_too) = 0;

  /// *Collective.* Keeps units whole until unpin().
  virtual void pin(std::span<const int> units) = 0;
  virtual void unpin(std::span<const int> units) = 0;
  /// A pinned unit's values, [U], in ShardedModel::device's memory. Local.
  virtual at::Tensor pinned_view(int unit) = 0;
  /// Where the module reads the values of a parameter of a pinned unit, flat: in pinned_view(), unless the module is on
  /// another device. Local.
  virtual void* module_values(int parameter);
  /// Takes what the program wrote there into pinned_view(), where that is not the same. Local.
  virtual void collect(std::span<const int> parameters) { (void)parameters; }
  /// Around a scope in which rank `modifier` writes parameters; `failed`: it ends by an exception, on this rank. On the
  /// modifier the end comes after its last write. begin_modifying() is *collective*, end_modifying() local.
  virtual void begin_modifying() {}
  virtual void end_modifying(int modifier, bool failed) {
    (void)modifier;
    (void)failed;
  }
  /// *Collective.* Copies parameter values that `root` has in pinned_view() to every copy.
  virtual void broadcast(std::span<const int> parameters, int root) = 0;

  /// What has moved between memory and a disk, where shards are on one.
  virtual std::optional<offload::DiskTraffic> disk_traffic() const { return std::nullopt; }
  /// One line about it for people; empty without.
  virtual std::string disk_description() const { return {}; }

  /// Keeps alive the memory that a retired handle needs; see ParameterHandle::retire. Local.
  virtual std::shared_ptr<void> keep_alive(int unit) = 0;

  /// Refuses the program's own writes into parameters from now on, with this reason. Local.
  void refuse_writes(std::string why) { refuses_writes_ = std::move(why); }
  bool refuses_writes() const { return !refuses_writes_.empty(); }
  /// The program's own writes into parameters.
  ParameterWrites& writes() { return writes_; }
  /// Points a parameter whose own copy has ended back into the unit's memory, if that is whole. Local.
  virtual void reattach(int parameter) = 0;

  /// Effect of an in-place write to a parameter.
  enum class Write : std::uint8_t {
    kOwnCopy,   ///< goes to this rank's copy, see writes()
    kGathered,  ///< goes to gathered memory: inside a scope that will broadcast it
    kRefused,   ///< throws: inside a scope in which this rank may only read
  };
  /// Sets it for the given parameters from now on. Local.
  void set_write(std::span<const int> parameters, Write write);
  /// Brackets a scope in which these parameters are pinned: this rank's writes to them do not become part of the
  /// parameters, and are dropped at the end. Local.
  void begin_dropping(std::span<const int> parameters) { writes_.set_to_be_dropped(parameters, true); }
  void end_dropping(std::span<const int> parameters);

  /// Counters for the communication report.
  const CommunicationReport& counts() const { return counts_; }

  void before_write(intercept::ParameterHandle& handle, const char* op_name) override;

 protected:
  const Unit& unit(int index) const { return model_.units[index]; }
  /// Points all parameters of `index` into `base`, the unit's whole buffer.
  void attach(int index, void* base);
  void attach_parameter(int parameter, void* base);
  /// Takes the memory of all parameters of `index` away; `why_of` a parameter's name says what a raw access throws.
  void release(int index, std::string (*why_of)(const std::string& name) = nullptr);
  int phase() const;

  ShardedModel& model_;
  Timeline& timeline_;
  CommunicationReport counts_;
  const int process_;  ///< process that made it; a forked child has a copy

 private:
  ParameterWrites writes_;
  std::string refuses_writes_;
  std::vector<Write> write_;  ///< by parameter
};

/// Node-shared: the parameters exist once per node, in a mapping that all its ranks read. A shard is the owner's
/// writable slice; a gather is a pointer. Memory: the model once per node. With several nodes (model.hosts), updated
/// shards are sent to every other node once per step; with `overlaps_publish` while the program goes on, over a backend
/// whose windows take any memory (MPI, UCX). *Collective.*
std::unique_ptr<ParameterStore> make_node_shared_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                       bool overlaps_publish = false);

struct CopyingStoreOptions {
  /// Units that are always whole on every rank: all units unless parameters are sharded.
  std::vector<bool> resident;
  std::int64_t max_live_numel = 1'000'000'000;
  std::int64_t max_reuse_numel = 1'000'000'000;
  std::int64_t prefetch_numel = 50'000'000;
  /// True: chooses the prefetch distance from measured times, at most prefetch_numel. False: always prefetches that
  /// far.
  bool measured_prefetch = true;
  std::int64_t publish_bucket_numel = 500'000'000;
  /// The form in which units are gathered; not given: as they are.
  std::optional<GatherForm> form;
  /// Shards are in a file of each rank; all ranks are on one host. Else they are in memory.
  std::optional<offload::DiskOptions> disk;
  /// All ranks are on one host, the module is on an accelerator, and shards are in memory there or of the host, once
  /// for all ranks: they copy units from it.
  bool shares_shards = false;
  /// Resident units of the host get their updated values while the program goes on (overlapped_store.cpp). Not with
  /// updates_in_backward.
  bool overlaps_publish = false;
  /// Shards are written within backward: publish() returns only when no copy to another device reads them any more.
  bool updates_in_backward = false;
};

/// Copying: every rank holds its shards; a gather copies a unit into a buffer. Sharded units are gathered just before
/// use, or ahead of it when the order of use is known, and released when the next unit is used unless they are needed
/// again within max_reuse_numel. If the module is on another device than the shards, whole units are copied there in
/// a stream of their own. *Collective.* Throws IoError where shards are on a disk.
std::unique_ptr<ParameterStore> make_copying_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                   CopyingStoreOptions options);

}  // namespace zero::sharding
