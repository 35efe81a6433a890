#include "sharding/gradient_wire.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "layout/bucket_schedule.h"
#include "sharding/buffer_pool.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

class PlainWire final : public GradientWire {
 public:
  explicit PlainWire(const ShardedModel& model) : model_(model) {}

  bool sends_as_is() const override { return true; }
  DType dtype() const override { return model_.gradient_dtype; }
  std::int64_t sent_numel(std::int64_t numel) const override { return numel; }
  FlatBuffer* pack(FlatBuffer* gradients, std::int64_t, SentErrors&) override { return gradients; }
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

 private:
  const ShardedModel& model_;
  std::vector<const void*> slices_;
};

/// In blocks of few bits. With feedback the values that are sent are h = g + e, and what they lose, h - sent, is part
/// of the next e = decay * e + (1 - decay) * (h - sent) (Xie et al., LoCo, 2024).
class QuantizedWire final : public GradientWire {
 public:
  QuantizedWire(const ShardedModel& model, storage::Ledger& ledger, const Wire& form, std::int64_t largest_numel,
                bool overlap)
      : model_(model),
        ledger_(ledger),
        form_(form),
        largest_nbytes_(sent_numel(largest_numel)),
        most_nbytes_(layout::bucket_pool_limit(largest_nbytes_, overlap)),
        pool_(ledger, MemoryKind::kBuckets,
              [&model, &ledger](std::int64_t nbytes) {
                return model.home.make_readable(ledger, MemoryKind::kBuckets, DType::kByte, nbytes);
              }),
        values_(kChunkNumel),
        errors_(form.feedback ? kChunkNumel : 0),
        received_(kChunkNumel) {}

  bool sends_as_is() const override { return false; }
  DType dtype() const override { return DType::kByte; }
  std::int64_t sent_numel(std::int64_t numel) const override { return optim::nbytes_of(form_.format, numel); }
  bool is_full() const override { return pool_.would_exceed(most_nbytes_, largest_nbytes_); }

  FlatBuffer* pack(FlatBuffer* gradients, std::int64_t numel, SentErrors& errors) override {
    FlatBuffer* const sent = pool_.take(largest_nbytes_);
    const bool has_errors = form_.feedback && errors.era == era_;
    if (form_.feedback && errors.kept.empty()) {
      errors.kept = model_.home.make_private(ledger_, MemoryKind::kGradients, DType::kByte,
                                             optim::nbytes_of(kErrorFormat, numel));
    }
    errors.era = era_;
    for (std::int64_t begin = 0; begin < numel; begin += kChunkNumel) {
      const std::int64_t count = std::min(kChunkNumel, numel - begin);
      void* const out = sent->data_at(sent_numel(begin));
      const float* values = widened(*gradients, begin, count);
      if (!form_.feedback) {
        kernels_.narrow_state(form_.format, values, out, count);
        continue;
      }
      void* const kept = errors.kept.data_at(optim::nbytes_of(kErrorFormat, begin));
      if (has_errors) {
        kernels_.widen_state(kErrorFormat, kept, errors_.data(), count);
      } else {
        std::fill_n(errors_.begin(), count, 0.0f);
      }
      send_with_errors(values, out, count);
      kernels_.narrow_state(kErrorFormat, errors_.data(), kept, count);
    }
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
  static constexpr std::int64_t kChunkNumel = 16 * optim::kSumBlockNumel;  ///< stays in a core's cache

  const float* widened(const FlatBuffer& gradients, std::int64_t begin, std::int64_t numel) {
    const void* const from = gradients.data_at(begin);
    if (gradients.dtype() == DType::kFloat32) return static_cast<const float*>(from);
    kernels_.widen_state(optim::format_of(gradients.dtype()), from, values_.data(), numel);
    return values_.data();
  }

  /// errors_ are the old ones, then the new ones.
  void send_with_errors(const float* values, void* out, std::int64_t numel) {
    const auto decay = static_cast<float>(form_.feedback->decay), rest = 1 - decay;
    for (std::int64_t i = 0; i < numel; ++i) values_[i] = values[i] + errors_[i];
    kernels_.narrow_state(form_.format, values_.data(), out, numel);
    compared_.resize(kChunkNumel);
    kernels_.widen_state(form_.format, out, compared_.data(), numel);
    for (std::int64_t i = 0; i < numel; ++i) {
      const float error = decay * errors_[i] + rest * (values_[i] - compared_[i]);
      errors_[i] = std::isfinite(error) ? error : 0;  // of a step that is skipped
    }
  }

  const ShardedModel& model_;
  storage::Ledger& ledger_;
  const Wire form_;
  const optim::Kernels& kernels_ = optim::kernels();
  const std::int64_t largest_nbytes_, most_nbytes_;
  BufferPool pool_;
  std::vector<float> values_, errors_, compared_;
  std::vector<float> received_;  ///< by reduce()
  std::int64_t windows_ = 0, era_ = 0;
};

}  // namespace

std::unique_ptr<GradientWire> make_gradient_wire(const ShardedModel& model, storage::Ledger& ledger,
                                                 const std::optional<Wire>& form, std::int64_t largest_numel,
                                                 bool overlap) {
  if (!form) return std::make_unique<PlainWire>(model);
  return std::make_unique<QuantizedWire>(model, ledger, *form, largest_numel, overlap);
}

}  // namespace zero::sharding
