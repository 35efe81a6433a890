#pragma once
// Byte-level corpora: pack files once, map them, and draw training sequences that depend on nothing but
// a seed and a global index. Tokens are bytes (vocabulary 256). No libtorch: the caller owns the tensors.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zero {

struct CorpusOptions {
  /// A file, or a folder that is walked (names starting with a dot and links to folders are left out).
  std::filesystem::path source;
  /// Where the packed corpus goes or is found: train.bin, val.bin, corpus.json. Created with its parents.
  std::filesystem::path folder;
  /// Files of a folder that are taken; "": all. A source that is itself a file is always taken.
  std::vector<std::string> suffixes = {".py", ".txt", ".md", ".rst"};
  /// Smaller and larger files are left out (nbytes). Large ones are mostly data, not text. Those of more than 1 MiB are
  /// cut at line ends into pieces of about so much, which are shuffled as files are.
  std::int64_t min_file_nbytes = 1;
  std::int64_t max_file_nbytes = 1 << 20;
  /// Stop taking files (in shuffled order) when the corpus has this many bytes; 0: no bound.
  std::int64_t max_nbytes = 0;
  /// Part of the bytes that goes to the validation split, in whole files.
  double validation_fraction = 0.05;
  /// Order of the files, and so what is validation.
  std::uint64_t seed = 1234;
};

/// Files that were left out for one reason.
struct LeftOutFiles {
  std::string reason;  ///< "not UTF-8"
  std::int64_t files = 0;
  std::int64_t nbytes = 0;
  std::string largest;  ///< its name, relative to the source
  std::int64_t largest_nbytes = 0;
};

struct CorpusInfo {
  std::filesystem::path folder;
  std::string source;
  /// True when a packed corpus with the same options and the same files (paths, sizes, times) was found.
  bool reused = false;
  /// Of the contents of both splits; the same hash is the same data.
  std::string hash;
  std::int64_t train_nbytes = 0;
  std::int64_t validation_nbytes = 0;
  std::int64_t files = 0;  ///< taken
  /// By reason: the same contents as one that was taken, size, suffix, hidden, a zero byte, not UTF-8, unreadable.
  std::vector<LeftOutFiles> left_out;
  /// Entropy of single bytes: what a model that knows only their frequencies loses per byte.
  double train_unigram_entropy_nats = 0;
  double validation_unigram_entropy_nats = 0;
};

/// Packs `options.source` into `options.folder`, or finds it there unchanged. Text files (pieces, where they are large)
/// are deduplicated by content, shuffled and concatenated, each followed by one zero byte. Memory: a few MiB, whatever
/// their size. Written to a temporary folder beside it and renamed, so readers see all or nothing; several processes
/// may pack the same corpus at once. Local.
/// Throws ConfigError for options that make no sense, IoError when the source is missing or has no usable
/// text, or the folder cannot be written or holds something else than a corpus.
CorpusInfo pack_corpus(const CorpusOptions& options);

enum class Split : std::uint8_t { kTrain, kValidation };

/// One split of a packed corpus, mapped read-only. A value: copies share the mapping, which lives until
/// the last copy is gone. Any thread.
class Corpus {
 public:
  /// Throws IoError when the folder has no complete corpus, or its files do not have the sizes that
  /// corpus.json says.
  Corpus(const std::filesystem::path& folder, Split split);
  /// A corpus in memory, for tests and small programs.
  explicit Corpus(std::string text);

  /// Bytes, which are the tokens.
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// Entropy of single bytes of this split, in nats (divide by ln 2 for bits).
  double unigram_entropy_nats() const { return unigram_entropy_nats_; }
  /// CorpusInfo::hash; of the text itself for a corpus in memory.
  const std::string& hash() const { return hash_; }
  /// For messages: the file, or "memory".
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::uint8_t> bytes_;
  double unigram_entropy_nats_ = 0;
  std::string hash_;
  std::string name_;
};

/// Entropy of the byte frequencies, in nats. 0 for no bytes.
double unigram_entropy_nats(std::span<const std::uint8_t> bytes);

/// Training sequences. The corpus is cut into windows of `sequence_length` + 1 bytes that overlap by one
/// byte, so that every byte but the first is a target once per epoch. Global sample s is window
/// permutation(seed, epoch)(s mod windows) with epoch = s / windows: it depends on nothing else, neither on
/// rank nor on the number of ranks. There is no state: to resume, go on with the next index. Any thread.
class SequenceSampler {
 public:
  /// Throws ConfigError when the corpus is too small for one sequence or `sequence_length` is not positive.
  SequenceSampler(Corpus corpus, std::int64_t sequence_length, std::uint64_t seed);

  /// Writes micro-batch `global_micro_batch` (i = j * ranks + rank for accumulation step j counted from the
  /// start of training) to `tokens` [micro_batch_size, sequence_length + 1]: inputs are [:, :-1], targets
  /// [:, 1:]. It holds the samples i * micro_batch_size and following. Throws ConfigError for a negative
  /// index or size.
  void fill(std::int64_t global_micro_batch, std::int64_t micro_batch_size, std::int64_t* tokens) const;

  /// First byte of a sample in the corpus.
  std::int64_t offset_of(std::int64_t global_sample) const;

  std::int64_t windows() const { return windows_; }  ///< samples per epoch
  std::int64_t sequence_length() const { return sequence_length_; }

 private:
  Corpus corpus_;
  std::int64_t sequence_length_;
  std::int64_t windows_;
  std::uint64_t seed_;
};

/// Validation sequences: always the same windows, spread evenly over the split, in order.
class ValidationBatches {
 public:
  /// At most `max_batches` (0: all) batches of `batch_size` sequences. Throws ConfigError when the split is
  /// too small for one batch.
  ValidationBatches(Corpus corpus, std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches = 0);

  std::int64_t batches() const { return batches_; }
  /// Writes batch `index` to `tokens` [batch_size, sequence_length + 1].
  void fill(std::int64_t index, std::int64_t* tokens) const;

 private:
  Corpus corpus_;
  std::int64_t sequence_length_;
  std::int64_t batch_size_;
  std::int64_t windows_;
  std::int64_t batches_;
};

}  // namespace zero
