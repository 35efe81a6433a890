#pragma once
// GradientWire: the form in which gradients travel to the owners of their shards, as they are or in fewer bits.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport.h"
#include "optim/kernels.h"
#include "sharding/plan/sharding_plan.h"
#include "sharding/sharded_model.h"
#include "storage/flat_buffer.h"
#include "storage/ledger.h"

namespace zero::sharding {

/// What the values of a range of gradients have lost when they were sent last, for the next time.
struct SentErrors {
  storage::FlatBuffer kept;  ///< empty until they have been sent
  std::int64_t era = -1;     ///< they count within it
};

/// Ranges are whole blocks of the layout, which no form cuts: what is sent of an element depends neither on buckets nor
/// on ranks. Local. reduce() may run beside the others, each in one thread at a time.
class GradientWire {
 public:
  virtual ~GradientWire() = default;

  /// Gradients are sent from where they are; a rank alone may put them straight into sums.
  virtual bool sends_as_is() const = 0;
  /// What is sent: elements of this dtype, so many for `numel` gradients.
  virtual DType dtype() const = 0;
  virtual std::int64_t sent_numel(std::int64_t numel) const = 0;

  /// Packing more takes memory beyond what is meant to be under way at a time.
  virtual bool is_full() const { return false; }
  /// There are more buckets: this is the largest number of gradients that are packed at once. Nothing is under way.
  virtual void set_largest(std::int64_t numel) { (void)numel; }
  /// What is sent of the first `numel` of `gradients`: the same buffer, or one that release() takes, and `gradients`
  /// are no longer needed. `errors`: of this range, by micro-batch of a window. Throws IoError.
  virtual storage::FlatBuffer* pack(storage::FlatBuffer* gradients, std::int64_t numel, std::vector<SentErrors>& errors,
                                    std::size_t micro_batch) = 0;
  /// False: it is the caller's.
  virtual bool release(storage::FlatBuffer* sent) = 0;
  /// As Passes::reduce(), of gradients from `from` on in each slice, where `args.slices` are as sent, or sums of
  /// host_sums().
  virtual void reduce(const optim::ReduceArgs& args, std::int64_t from) = 0;

  /// Gradients of a few rows may be sent as rows.
  virtual bool sends_rows() const { return true; }
  /// Sums that the ranks of a host may make before anything is sent to another host; and whether reduce() gets them.
  virtual comm::HostSums host_sums() { return {}; }
  virtual void expect_host_sums(bool are_made) { (void)are_made; }

  /// A window of micro-batches is over.
  virtual void end_window() {}
  /// Errors so far do not count from here on.
  virtual void forget_errors() {}
};

/// `block`: so many ranks' gradients are added before these sums are; up to 1: one after the other.
std::unique_ptr<GradientWire> make_gradient_wire(const ShardedModel& model, storage::Ledger& ledger,
                                                 const std::optional<Wire>& form, int block, bool overlap);

}  // namespace zero::sharding
