#pragma once
// Corpora: pack files once, map them, and draw training sequences that depend only on a seed and a global index. Tokens
// are the bytes of text (vocabulary 256), or what a tokenizer has written. No libtorch: the caller owns the tensors.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zero {

/// One of the corpora of a mixture.
struct MixedCorpus {
  std::filesystem::path source;  ///< as CorpusOptions::source
  std::filesystem::path folder;  ///< of its packed form
  /// Its part of the sequences, relative to the other weights.
  double weight = 1;
};

struct CorpusOptions {
  /// A file, or a folder that is walked (names starting with a dot and links to folders are left out). Or a folder of
  /// token files, which are read where they are, as their writer has split and ordered them: those of `python -m
  /// zerotorch.tokenize` (tokens.json), nanoGPT's (train.bin and val.bin, uint16), llm.c's (shards with a header, with
  /// "train" and "val" in their names).
  std::filesystem::path source;
  /// Folder of the packed corpus: train.bin, val.bin, corpus.json. Created with its parents.
  std::filesystem::path folder;
  /// Not empty: several corpora in place of one. Of every 1,000 sequences in a row each gets its share, in an order
  /// that depends on the seed; each is gone through as often as its share needs. `source` is then a name for messages.
  std::vector<MixedCorpus> mixture = {};
  /// Suffixes of the files to take from a folder; "": all files. A source that is itself a file is always taken.
  std::vector<std::string> suffixes = {".py", ".txt", ".md", ".rst"};
  /// Smaller and larger files are left out (bytes). Large files are mostly data, not text. Files of more than 1 MiB are
  /// cut at line ends into pieces of about 1 MiB, which are shuffled like files.
  std::int64_t min_file_nbytes = 1;
  std::int64_t max_file_nbytes = 1 << 20;
  /// Stop taking files (in shuffled order) when the corpus has this many bytes; 0: no limit.
  std::int64_t max_nbytes = 0;
  /// Fraction of the bytes for the validation split, in whole files. 1: all of them, there is nothing to train on, and
  /// what is there twice counts twice.
  double validation_fraction = 0.05;
  /// Determines the order of the files, and thereby the validation split.
  std::uint64_t seed = 1234;
};

/// Files that were left out for one reason.
struct LeftOutFiles {
  std::string reason;  ///< "not UTF-8"
  std::int64_t files = 0;
  std::int64_t nbytes = 0;
  std::string largest;  ///< name of the largest, relative to the source
  std::int64_t largest_nbytes = 0;
};

/// What the tokens of a corpus are.
struct TokenInfo {
  int nbytes = 1;  ///< of a token in the files: 1 (a byte of text), 2 or 4
  /// Some tokens are context only (what a user says in a conversation): in their files bit 31 is set, and no loss is
  /// taken on them. Of `nbytes` 4 only.
  bool has_context = false;
  std::int64_t largest = 255;  ///< there is; a model's vocabulary must be larger
  /// Bytes of text that a token of the validation split (without context) stands for on average; 0: not known.
  double text_nbytes = 1;
  std::string pieces;     ///< a file with the bytes of each token, read by token_pieces(); empty: none
  std::string tokenizer;  ///< a folder with the tokenizer's files; empty: none

  bool operator==(const TokenInfo&) const = default;
};

/// Whether pack_corpus() takes `source` for a folder of token files, and not for text. Local. Throws IoError for token
/// files that are damaged.
bool holds_tokens(const std::filesystem::path& source);

/// A token's bytes by its number, from TokenInfo::pieces. Local. Throws IoError.
std::vector<std::string> token_pieces(const std::string& path);

/// A corpus of a mixture, packed.
struct MixtureMember {
  std::string source;
  std::int64_t sequences = 0;  ///< of every 1,000
  std::int64_t train_tokens = 0, validation_tokens = 0;
  std::string folder, hash;  ///< of its packed form
};

struct CorpusInfo {
  std::filesystem::path folder;
  std::string source;
  /// True when a packed corpus with the same options and the same files (paths, sizes, times) was found.
  bool reused = false;
  /// Hash of the contents of both splits; equal hashes mean equal data.
  std::string hash;
  TokenInfo tokens;
  std::int64_t train_nbytes = 0;       ///< of the tokens in their files; of a mixture: at TokenInfo::nbytes each
  std::int64_t validation_nbytes = 0;  ///< the same
  std::int64_t train_tokens() const { return train_nbytes / tokens.nbytes; }
  std::int64_t validation_tokens() const { return validation_nbytes / tokens.nbytes; }
  /// Of the tokens, those that are not context.
  std::int64_t train_targets = 0, validation_targets = 0;
  std::int64_t files = 0;  ///< files taken
  /// By reason: duplicate contents, size, suffix, hidden, a zero byte, not UTF-8, unreadable.
  std::vector<LeftOutFiles> left_out;
  /// Entropy of single tokens, without context: the loss per token of a model that knows only their frequencies.
  /// Of a mixture the mean over its corpora by their shares: of a model that also knows which of them it reads.
  double train_unigram_entropy_nats = 0;
  double validation_unigram_entropy_nats = 0;
  std::vector<MixtureMember> members;  ///< of a mixture
};

/// Packs `options.source` into `options.folder`, or reuses an unchanged corpus there. Text files (large ones in pieces)
/// are deduplicated by content, shuffled and concatenated, each followed by one zero byte. Memory: a few MiB, whatever
/// their size. Of token files only their sizes, hash and frequencies are written. Written to a temporary folder beside
/// it and renamed, so readers see all or nothing; several processes may pack the same corpus at once. Local.
/// Throws ConfigError for invalid options; IoError if the source is missing or has no usable text, token files are
/// damaged, or the folder cannot be written or holds something other than a corpus. A mixture's corpora are packed one
/// by one, or found packed; ConfigError where their tokens are not of one kind.
CorpusInfo pack_corpus(const CorpusOptions& options);

/// Whether the packed text in a folder is what was packed, which it is read for; token files are not looked at. False
/// where it is missing, too. Local.
bool is_packed_well(const std::filesystem::path& folder);

enum class Split : std::uint8_t { kTrain, kValidation };

/// The target in the place of a token that is context only; what losses ignore.
inline constexpr std::int64_t kNoTarget = -100;

/// Of so many sequences in a row the corpora of a mixture have their shares.
inline constexpr std::int64_t kMixtureSequences = 1000;

/// One split of a packed corpus, mapped read-only. Copies share the mapping, which lives until the last copy is
/// destroyed. Any thread.
class Corpus {
 public:
  /// Throws IoError if the folder has no complete corpus, or file sizes differ from corpus.json.
  Corpus(const std::filesystem::path& folder, Split split);
  /// A corpus in memory, for tests and small programs.
  explicit Corpus(std::string text);

  std::int64_t size() const { return size_; }  ///< tokens
  /// The corpora of a mixture one after the other, or the one there is.
  struct Section {
    std::int64_t first = 0, size = 0;  ///< tokens
    std::int64_t sequences = 0;        ///< of every kMixtureSequences
  };
  const std::vector<Section>& sections() const { return sections_; }
  /// Tokens [first, first + tokens.size()). Undefined beyond size().
  void copy(std::int64_t first, std::span<std::int64_t> tokens) const;
  /// The same as targets: kNoTarget where a token is context only.
  void copy_targets(std::int64_t first, std::span<std::int64_t> targets) const;
  /// Of tokens [first, first + count) those that are not context.
  std::int64_t count_targets(std::int64_t first, std::int64_t count) const;
  bool has_context() const { return has_context_; }
  /// What a token is called in messages.
  const char* unit() const { return token_nbytes_ == 1 ? "bytes" : "tokens"; }
  /// Entropy of single tokens of this split, in nats (divide by ln 2 for bits).
  double unigram_entropy_nats() const { return unigram_entropy_nats_; }
  /// CorpusInfo::hash; for a corpus in memory, the hash of its text.
  const std::string& hash() const { return hash_; }
  /// For messages: the file, or "memory".
  const std::string& name() const { return name_; }

 private:
  struct Part {
    std::shared_ptr<const void> owner;
    const std::uint8_t* tokens = nullptr;
    std::int64_t first = 0, count = 0;
    int token_nbytes = 1;
  };
  std::vector<Part> parts_;  ///< one after the other
  /// As they are in the files.
  void copy_raw(std::int64_t first, std::span<std::int64_t> tokens) const;

  std::vector<Section> sections_;
  std::int64_t size_ = 0;
  int token_nbytes_ = 1;  ///< the largest
  bool has_context_ = false;
  double unigram_entropy_nats_ = 0;
  std::string hash_;
  std::string name_;
};

/// Entropy of the byte frequencies, in nats. 0 for no bytes.
double unigram_entropy_nats(std::span<const std::uint8_t> bytes);

/// Training sequences. The corpus is cut into windows of `sequence_length` + 1 tokens that overlap by one, so that
/// every token but the first is a target once per epoch. Global sample s is window permutation(seed, epoch)(s mod
/// windows) with epoch = s / windows: independent of rank and number of ranks. Of a mixture the s-th sequence is the
/// next one of a corpus, each with epochs of its own. There is no state: to resume, continue with the next index. Any
/// thread.
class SequenceSampler {
 public:
  /// Throws ConfigError when the corpus is too small for one sequence or `sequence_length` is not positive.
  SequenceSampler(Corpus corpus, std::int64_t sequence_length, std::uint64_t seed);

  /// Writes micro-batch `global_micro_batch` to `tokens` [micro_batch_size, sequence_length + 1]: inputs are [:, :-1],
  /// targets [:, 1:]. The index is i = j * ranks + rank for accumulation step j, counted from the start of training;
  /// micro-batch i holds the samples from i * micro_batch_size on. Throws ConfigError for a negative index or size.
  void fill(std::int64_t global_micro_batch, std::int64_t micro_batch_size, std::int64_t* tokens) const;
  /// With targets [micro_batch_size, sequence_length], kNoTarget where they are context.
  void fill(std::int64_t global_micro_batch, std::int64_t micro_batch_size, std::int64_t* tokens,
            std::int64_t* targets) const;
  /// The number of targets in it that are not context.
  std::int64_t count_targets(std::int64_t global_micro_batch, std::int64_t micro_batch_size) const;
  const Corpus& corpus() const { return corpus_; }

  /// First token of a sample in the corpus.
  std::int64_t offset_of(std::int64_t global_sample) const;

  std::int64_t windows() const { return windows_; }  ///< samples per epoch, of a mixture's corpora together
  std::int64_t sequence_length() const { return sequence_length_; }

 private:
  std::int64_t first_sample(std::int64_t global_micro_batch, std::int64_t micro_batch_size) const;

  Corpus corpus_;
  std::int64_t sequence_length_;
  std::int64_t windows_;
  std::uint64_t seed_;
};

/// Validation sequences: always the same windows, spread evenly over the split, in order; of a mixture each corpus has
/// its share of them.
class ValidationBatches {
 public:
  /// The number of sequences of a split; of a mixture the most in which every corpus has its share.
  static std::int64_t sequences_of(const Corpus& corpus, std::int64_t sequence_length);

  /// At most `max_batches` (0: all) batches of `batch_size` sequences. Throws ConfigError when the split is
  /// too small for one batch.
  ValidationBatches(Corpus corpus, std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches = 0);

  std::int64_t batches() const { return batches_; }
  /// Writes batch `index` to `tokens` [batch_size, sequence_length + 1].
  void fill(std::int64_t index, std::int64_t* tokens) const;
  /// With targets [batch_size, sequence_length], as SequenceSampler::fill(). Returns the number of those that count.
  std::int64_t fill(std::int64_t index, std::int64_t* tokens, std::int64_t* targets) const;
  const Corpus& corpus() const { return corpus_; }

 private:
  std::int64_t offset_of(std::int64_t index, std::int64_t sequence) const;

  Corpus corpus_;
  std::int64_t sequence_length_;
  std::int64_t batch_size_;
  std::int64_t batches_;
  std::vector<std::int64_t> used_;  ///< windows of each section
};

}  // namespace zero
