#include "sharding/gradient_wire.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "layout/bucket_schedule.h"
#include "sharding/buffer_pool.h"
#include "sharding/widened.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

class PlainWire : public GradientWire {
 public:
  explicit PlainWire(const ShardedModel& model) : model_(model) {}

  bool sends_as_is() const override { return true; }
  DType dtype() const override { return model_.gradient_dtype; }
  std::int64_t sent_numel(std::int64_t numel) const override { return numel; }
  FlatBuffer* pack(FlatBuffer* gradients, std::int64_t, std::vector<SentErrors>&, std::size_t) override {
    return gradients;
  }
  bool release(FlatBuffer*) override { return false; }
  void reduce(const optim::ReduceArgs& args, std::int64_t from) override {
    optim::ReduceArgs moved = args;
    slices_.clear();
    for (const void* const slice : args.slices)
      slices_.push_back(static_cast<const char*>(slice) +
                        from * static_cast<std::int64_t>(element_nbytes(model_.gradient_dtype)));
    moved.slices = slices_;
    moved.dtype = model_.gradient_dtype;
    model_.passes->reduce(moved);
  }

 protected:
  const ShardedModel& model_;

 private:
  std::vector<const void*> slices_;
};

/// The gradients of each block of consecutive ranks are added first, by a host of so many ranks or here.
class BlockWire final : public PlainWire {
 public:
  BlockWire(const ShardedModel& model, int block) : PlainWire(model), block_(static_cast<std::size_t>(block)) {}

  bool sends_rows() const override { return false; }  // their sums are made elsewhere, rank by rank
  comm::HostSums host_sums() override {
    return {
        .ranks = static_cast<int>(block_),
        .dtype = DType::kFloat32,
        .add = [this](std::span<const void* const> slices, std::int64_t numel, void* sum) {
          model_.passes->reduce(
              {.accumulator = sum, .slices = slices, .dtype = model_.gradient_dtype, .numel = numel, .first = true});
        }};
  }
  void reduce(const optim::ReduceArgs& args, std::int64_t from) override {
    const std::size_t slices = args.slices.size(), block = gets_sums_ ? 1 : block_;
    const void* const sum = sum_.data();
    for (std::int64_t begin = 0; begin < args.numel; begin += kChunkNumel) {
      optim::ReduceArgs chunk{.accumulator = static_cast<float*>(args.accumulator) + begin,
                              .numel = std::min(kChunkNumel, args.numel - begin),
                              .first = args.first};
      for (std::size_t first = 0; first < slices; first += block) {
        const void* added = sum;
        if (gets_sums_) {
          added = static_cast<const float*>(args.slices[first]) + from + begin;
        } else {
          PlainWire::reduce({.accumulator = sum_.data(),
                             .slices = args.slices.subspan(first, std::min(block, slices - first)),
                             .numel = chunk.numel,
                             .first = true},
                            from + begin);
        }
        if (first + block >= slices && args.block_sumsq)
          chunk.block_sumsq = args.block_sumsq + begin / optim::kSumBlockNumel;
        chunk.slices = {&added, 1};
        model_.passes->reduce(chunk);
        chunk.first = false;
      }
    }
  }

  void expect_host_sums(bool are_made) override { gets_sums_ = are_made; }

 private:
  const std::size_t block_;
  bool gets_sums_ = false;
  std::vector<float> sum_ = std::vector<float>(kChunkNumel);
};

/// In blocks of few bits. With feedback the values that are sent are h = g + e, and what they lose, h - sent, is part
/// of the next e = decay * e + (1 - decay) * (h - sent) (Xie et al., LoCo, 2024).
class QuantizedWire final : public GradientWire {
 public:
  QuantizedWire(const ShardedModel& model, storage::Ledger& ledger, const Wire& form, bool overlap)
      : model_(model),
        ledger_(ledger),
        form_(form),
        overlap_(overlap),
        pool_(ledger, MemoryKind::kBuckets,
              [&model, &ledger](std::int64_t nbytes) {
                return model.home.make_readable(ledger, MemoryKind::kBuckets, DType::kByte, nbytes);
              }),
        errors_(form.feedback ? kChunkNumel : 0),
        sent_values_(errors_.size()),
        received_(kChunkNumel) {}

  bool sends_as_is() const override { return false; }
  bool sends_rows() const override { return false; }
  DType dtype() const override { return DType::kByte; }
  std::int64_t sent_numel(std::int64_t numel) const override { return optim::nbytes_of(form_.format, numel); }
  bool is_full() const override {
    return pool_.would_exceed(layout::bucket_pool_limit(largest_nbytes_, overlap_), largest_nbytes_);
  }
  void set_largest(std::int64_t numel) override { largest_nbytes_ = sent_numel(numel); }

  FlatBuffer* pack(FlatBuffer* gradients, std::int64_t numel, std::vector<SentErrors>& errors,
                   std::size_t micro_batch) override {
    SentErrors* const lost = form_.feedback ? &errors_of(errors, micro_batch, numel) : nullptr;
    FlatBuffer* const sent = pool_.take(largest_nbytes_);
    for (std::int64_t begin = 0; begin < numel; begin += kChunkNumel) {
      const std::int64_t count = std::min(kChunkNumel, numel - begin);
      void* const out = sent->data_at(sent_numel(begin));
      const float* const values = wide_.of(gradients->data_at(begin), gradients->dtype(), count);
      if (lost) {
        send_with_errors(values, out, count, lost->kept.data_at(optim::nbytes_of(kErrorFormat, begin)),
                         lost->era == era_);
      } else {
        kernels_.narrow_state(form_.format, values, out, count);
      }
    }
    if (lost) lost->era = era_;
    return sent;
  }
  bool release(FlatBuffer* sent) override {
    pool_.give_back(sent);
    return true;
  }

  void reduce(const optim::ReduceArgs& args, std::int64_t from) override {
    const auto sum_nbytes = static_cast<std::int64_t>(element_nbytes(args.accumulator_dtype));
    const void* const received = received_.data();
    for (std::int64_t begin = 0; begin < args.numel; begin += kChunkNumel) {
      optim::ReduceArgs chunk{.accumulator = static_cast<char*>(args.accumulator) + begin * sum_nbytes,
                              .slices = {&received, 1},
                              .numel = std::min(kChunkNumel, args.numel - begin),
                              .first = args.first,
                              .accumulator_dtype = args.accumulator_dtype};
      for (std::size_t s = 0; s < args.slices.size(); ++s) {
        kernels_.widen_state(form_.format, static_cast<const char*>(args.slices[s]) + sent_numel(from + begin),
                             received_.data(), chunk.numel);
        if (s + 1 == args.slices.size() && args.block_sumsq)
          chunk.block_sumsq = args.block_sumsq + begin / optim::kSumBlockNumel;
        model_.passes->reduce(chunk);
        chunk.first = false;
      }
    }
  }

  void end_window() override {
    if (form_.feedback && ++windows_ % form_.feedback->reset_windows == 0) ++era_;
  }
  void forget_errors() override {
    windows_ = 0;
    ++era_;
  }

 private:
  SentErrors& errors_of(std::vector<SentErrors>& errors, std::size_t micro_batch, std::int64_t numel) {
    if (errors.size() <= micro_batch) errors.resize(micro_batch + 1);
    SentErrors& its = errors[micro_batch];
    if (its.kept.empty()) {
      its.kept = model_.home.make_private(ledger_, MemoryKind::kGradients, DType::kByte,
                                          optim::nbytes_of(kErrorFormat, numel));
    }
    return its;
  }

  /// `kept` has the errors so far if they count, and then the new ones. `values` may be in wide_.
  void send_with_errors(const float* values, void* out, std::int64_t numel, void* kept, bool counts) {
    if (counts) {
      kernels_.widen_state(kErrorFormat, kept, errors_.data(), numel);
    } else {
      std::fill_n(errors_.begin(), numel, 0.0f);
    }
    float* const sums = wide_.data();
    for (std::int64_t i = 0; i < numel; ++i) sums[i] = values[i] + errors_[i];
    kernels_.narrow_state(form_.format, sums, out, numel);
    kernels_.widen_state(form_.format, out, sent_values_.data(), numel);
    const auto decay = static_cast<float>(form_.feedback->decay), rest = 1 - decay;
    for (std::int64_t i = 0; i < numel; ++i) {
      const float error = decay * errors_[i] + rest * (sums[i] - sent_values_[i]);
      errors_[i] = std::isfinite(error) ? error : 0;  // of a step that is skipped
    }
    kernels_.narrow_state(kErrorFormat, errors_.data(), kept, numel);
  }

  const ShardedModel& model_;
  storage::Ledger& ledger_;
  const Wire form_;
  const optim::Kernels& kernels_ = optim::kernels();
  const bool overlap_;
  std::int64_t largest_nbytes_ = 0;
  BufferPool pool_;
  Widened wide_;
  std::vector<float> errors_, sent_values_;
  std::vector<float> received_;  ///< by reduce()
  std::int64_t windows_ = 0, era_ = 0;
};

}  // namespace

std::unique_ptr<GradientWire> make_gradient_wire(const ShardedModel& model, storage::Ledger& ledger,
                                                 const std::optional<Wire>& form, int block, bool overlap) {
  if (!form && block > 1) return std::make_unique<BlockWire>(model, block);
  if (!form) return std::make_unique<PlainWire>(model);
  return std::make_unique<QuantizedWire>(model, ledger, *form, overlap);
}

}  // namespace zero::sharding
