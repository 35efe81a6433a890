#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "data/permutation.h"
#include "data/random.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero {
namespace {

std::int64_t windows_of(const Corpus::Section& section, std::int64_t sequence_length) {
  return std::max<std::int64_t>(0, (section.size - 1) / sequence_length);
}

void check_windows(const Corpus& corpus, const Corpus::Section& section, std::int64_t sequence_length,
                   std::int64_t wanted) {
  if (windows_of(section, sequence_length) >= wanted) return;
  const bool is_mixture = corpus.sections().size() > 1;
  throw ConfigError(
      fmt::format("{}{}: got {} {}, want at least {} for {} sequence(s) of {} + 1 {}; use more text or a "
                  "smaller sequence length or batch",
                  corpus.name(), is_mixture ? fmt::format(", tokens {} on of the mixture", section.first) : "",
                  section.size, corpus.unit(), wanted * sequence_length + 1, wanted, sequence_length, corpus.unit()));
}

/// Of all sections, each of which has one at least.
std::int64_t count_windows(const Corpus& corpus, std::int64_t sequence_length, std::int64_t wanted) {
  if (sequence_length < 1) {
    throw ConfigError(fmt::format("sequence length: got {}, want at least 1", sequence_length));
  }
  std::int64_t windows = 0;
  const bool is_mixture = corpus.sections().size() > 1;
  for (const Corpus::Section& section : corpus.sections()) {
    check_windows(corpus, section, sequence_length, is_mixture ? 1 : wanted);
    windows += windows_of(section, sequence_length);
  }
  return windows;
}

/// Of `count` windows how many come from each section: by shares, as many as there are, and `count` in all if there are
/// so many.
std::vector<std::int64_t> shared_out(const Corpus& corpus, std::int64_t sequence_length, std::int64_t count) {
  std::vector<std::int64_t> used;
  std::int64_t shares = 0, taken = 0;
  for (const Corpus::Section& section : corpus.sections()) {
    // Where the shares so far end, less what the sections so far have got.
    shares += section.sequences;
    const std::int64_t wanted =
        count / kMixtureSequences * shares + count % kMixtureSequences * shares / kMixtureSequences - taken;
    used.push_back(std::clamp<std::int64_t>(wanted, 0, windows_of(section, sequence_length)));
    taken += used.back();
  }
  for (std::size_t i = 0; i < used.size() && taken < count; ++i) {
    const std::int64_t more = std::min(count - taken, windows_of(corpus.sections()[i], sequence_length) - used[i]);
    used[i] += more;
    taken += more;
  }
  return used;
}

/// The `index`-th window of a section since the start of training.
std::int64_t permuted(const Corpus::Section& section, std::int64_t windows, std::int64_t index,
                      std::int64_t sequence_length, std::uint64_t seed) {
  const auto epoch = static_cast<std::uint64_t>(index / windows);
  const data::Permutation permutation(static_cast<std::uint64_t>(windows), data::mix64(seed) ^ data::mix64(~epoch));
  return section.first +
         static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(index % windows))) * sequence_length;
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
  const std::vector<Corpus::Section>& sections = corpus_.sections();
  if (sections.size() == 1) return permuted(sections[0], windows_, global_sample, sequence_length_, seed_);
  // The places of a block are shared out, then shuffled.
  constexpr std::uint64_t kOfBlocks = 0xB10C;
  const std::int64_t block = global_sample / kMixtureSequences;
  const data::Permutation permutation(kMixtureSequences,
                                      data::mix64(seed_ ^ kOfBlocks) ^ data::mix64(~static_cast<std::uint64_t>(block)));
  auto place = static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(global_sample % kMixtureSequences)));
  std::size_t i = 0;
  for (; place >= sections[i].sequences; ++i) place -= sections[i].sequences;
  return permuted(sections[i], windows_of(sections[i], sequence_length_), block * sections[i].sequences + place,
                  sequence_length_, data::mix64(seed_ + i));
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

std::int64_t ValidationBatches::sequences_of(const Corpus& corpus, std::int64_t sequence_length) {
  std::int64_t most = std::numeric_limits<std::int64_t>::max() / kMixtureSequences;
  for (const Corpus::Section& section : corpus.sections()) {
    most = std::min(most, windows_of(section, sequence_length) * kMixtureSequences / section.sequences);
  }
  return most;
}

ValidationBatches::ValidationBatches(Corpus corpus, std::int64_t sequence_length, std::int64_t batch_size,
                                     std::int64_t max_batches)
    : corpus_(std::move(corpus)), sequence_length_(sequence_length), batch_size_(batch_size) {
  if (batch_size < 1 || max_batches < 0) {
    throw ConfigError(fmt::format("validation: got batches of {} and at most {} of them, want at least 1 and 0",
                                  batch_size, max_batches));
  }
  count_windows(corpus_, sequence_length, batch_size);
  batches_ = sequences_of(corpus_, sequence_length) / batch_size;
  if (max_batches > 0) batches_ = std::min(batches_, max_batches);
  if (batches_ == 0) {
    throw ConfigError(fmt::format("{}: its corpora have too little text for a batch of {} sequences by their shares",
                                  corpus_.name(), batch_size));
  }
  used_ = shared_out(corpus_, sequence_length, batches_ * batch_size);
}

std::int64_t ValidationBatches::offset_of(std::int64_t index, std::int64_t sequence) const {
  // Window k of the used ones is k * windows / used, split so that the product cannot overflow.
  std::int64_t k = index * batch_size_ + sequence;
  std::size_t i = 0;
  for (; k >= used_[i]; ++i) k -= used_[i];
  const Corpus::Section& section = corpus_.sections()[i];
  const std::int64_t used = used_[i], windows = windows_of(section, sequence_length_);
  return section.first + (windows / used * k + windows % used * k / used) * sequence_length_;
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
