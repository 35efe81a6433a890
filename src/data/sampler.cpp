#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/permutation.h"
#include "data/random.h"
#include "zero/data.h"
#include "zero/errors.h"

namespace zero {
namespace {

std::int64_t count_windows(const Corpus& corpus, std::int64_t sequence_length, std::int64_t wanted) {
  if (sequence_length < 1) {
    throw ConfigError(fmt::format("sequence length: got {}, want at least 1", sequence_length));
  }
  const std::int64_t windows = std::max<std::int64_t>(0, (corpus.size() - 1) / sequence_length);
  if (windows < wanted) {
    throw ConfigError(
        fmt::format("{}: got {} {}, want at least {} for {} sequence(s) of {} + 1 {}; use more text or a "
                    "smaller sequence length or batch",
                    corpus.name(), corpus.size(), corpus.unit(), wanted * sequence_length + 1, wanted, sequence_length,
                    corpus.unit()));
  }
  return windows;
}

void copy_window(const Corpus& corpus, std::int64_t offset, std::int64_t sequence_length, std::int64_t* tokens) {
  corpus.copy(offset, {tokens, static_cast<std::size_t>(sequence_length) + 1});
}

void copy_window_targets(const Corpus& corpus, std::int64_t offset, std::int64_t sequence_length,
                         std::int64_t* targets) {
  corpus.copy_targets(offset + 1, {targets, static_cast<std::size_t>(sequence_length)});
}

}  // namespace

SequenceSampler::SequenceSampler(Corpus corpus, std::int64_t sequence_length, std::uint64_t seed)
    : corpus_(std::move(corpus)),
      sequence_length_(sequence_length),
      windows_(count_windows(corpus_, sequence_length, 1)),
      seed_(seed) {}

std::int64_t SequenceSampler::offset_of(std::int64_t global_sample) const {
  if (global_sample < 0) throw ConfigError(fmt::format("sample: got {}, want at least 0", global_sample));
  const auto epoch = static_cast<std::uint64_t>(global_sample / windows_);
  const auto index = static_cast<std::uint64_t>(global_sample % windows_);
  const data::Permutation permutation(static_cast<std::uint64_t>(windows_), data::mix64(seed_) ^ data::mix64(~epoch));
  return static_cast<std::int64_t>(permutation(index)) * sequence_length_;
}

std::int64_t SequenceSampler::first_sample(std::int64_t global_micro_batch, std::int64_t micro_batch_size) const {
  std::int64_t first = 0;
  if (global_micro_batch < 0 || micro_batch_size < 1 ||
      __builtin_mul_overflow(global_micro_batch, micro_batch_size, &first)) {
    throw ConfigError(fmt::format("micro-batch {} of {} samples: want an index of at least 0 and at least 1 sample",
                                  global_micro_batch, micro_batch_size));
  }
  return first;
}

void SequenceSampler::fill(std::int64_t global_micro_batch, std::int64_t micro_batch_size, std::int64_t* tokens) const {
  const std::int64_t first = first_sample(global_micro_batch, micro_batch_size);
  for (std::int64_t b = 0; b < micro_batch_size; ++b) {
    copy_window(corpus_, offset_of(first + b), sequence_length_, tokens + b * (sequence_length_ + 1));
  }
}

void SequenceSampler::fill(std::int64_t global_micro_batch, std::int64_t micro_batch_size, std::int64_t* tokens,
                           std::int64_t* targets) const {
  fill(global_micro_batch, micro_batch_size, tokens);
  const std::int64_t first = first_sample(global_micro_batch, micro_batch_size);
  for (std::int64_t b = 0; b < micro_batch_size; ++b) {
    copy_window_targets(corpus_, offset_of(first + b), sequence_length_, targets + b * sequence_length_);
  }
}

std::int64_t SequenceSampler::count_targets(std::int64_t global_micro_batch, std::int64_t micro_batch_size) const {
  const std::int64_t first = first_sample(global_micro_batch, micro_batch_size);
  if (!corpus_.has_context()) return micro_batch_size * sequence_length_;
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < micro_batch_size; ++b) {
    count += corpus_.count_targets(offset_of(first + b) + 1, sequence_length_);
  }
  return count;
}

ValidationBatches::ValidationBatches(Corpus corpus, std::int64_t sequence_length, std::int64_t batch_size,
                                     std::int64_t max_batches)
    : corpus_(std::move(corpus)), sequence_length_(sequence_length), batch_size_(batch_size) {
  if (batch_size < 1 || max_batches < 0) {
    throw ConfigError(fmt::format("validation: got batches of {} and at most {} of them, want at least 1 and 0",
                                  batch_size, max_batches));
  }
  windows_ = count_windows(corpus_, sequence_length, batch_size);
  batches_ = windows_ / batch_size;
  if (max_batches > 0) batches_ = std::min(batches_, max_batches);
}

std::int64_t ValidationBatches::offset_of(std::int64_t index, std::int64_t sequence) const {
  // Window k of the used ones is k * windows / used, split so that the product cannot overflow.
  const std::int64_t used = batches_ * batch_size_, k = index * batch_size_ + sequence;
  return (windows_ / used * k + windows_ % used * k / used) * sequence_length_;
}

std::int64_t ValidationBatches::fill(std::int64_t index, std::int64_t* tokens, std::int64_t* targets) const {
  fill(index, tokens);
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < batch_size_; ++b) {
    const std::int64_t offset = offset_of(index, b);
    copy_window_targets(corpus_, offset, sequence_length_, targets + b * sequence_length_);
    count += corpus_.count_targets(offset + 1, sequence_length_);
  }
  return count;
}

void ValidationBatches::fill(std::int64_t index, std::int64_t* tokens) const {
  if (index < 0 || index >= batches_) {
    throw ConfigError(fmt::format("validation batch: got {}, want 0 to {}", index, batches_ - 1));
  }
  for (std::int64_t b = 0; b < batch_size_; ++b) {
    copy_window(corpus_, offset_of(index, b), sequence_length_, tokens + b * (sequence_length_ + 1));
  }
}

}  // namespace zero
