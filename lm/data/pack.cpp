// pack_corpus: list, read and deduplicate, shuffle, split, write.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "data/corpus_json.h"
#include "data/files.h"
#include "data/listing.h"
#include "data/random.h"
#include "data/token_files.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using data::SourceFile;

/// Ends every file in the packed corpus; no text file contains it.
constexpr char kSeparator = '\0';

void check_options(const CorpusOptions& options) {
  const auto refuse = [](const std::string& text) { throw ConfigError("corpus: " + text); };
  if (options.source.empty()) refuse("no source; give a file or a folder of text");
  if (options.folder.empty()) refuse("no folder; say where the packed corpus goes");
  if (options.suffixes.empty()) refuse("no suffixes; give at least one, as in \".py\"");
  if (!(options.validation_fraction > 0 && options.validation_fraction <= 1)) {
    refuse(fmt::format("validation_fraction: got {}, want above 0 and at most 1", options.validation_fraction));
  }
  if (options.max_file_nbytes < 1 || options.min_file_nbytes > options.max_file_nbytes || options.max_nbytes < 0) {
    refuse(fmt::format("file sizes {} to {} and at most {} in all: want an increasing range and nothing negative",
                       options.min_file_nbytes, options.max_file_nbytes, options.max_nbytes));
  }
}

/// Larger files are taken in pieces of at most so much.
constexpr std::int64_t kPieceNbytes = 1 << 20;

/// A file, or a part of one.
struct Piece {
  fs::path path;
  std::int64_t offset = 0, nbytes = 0;
  std::string content_hash;
};

/// Where to end a piece that begins with `text` and goes on behind it: behind its last line, else before a character.
std::size_t end_of_piece(std::string_view text) {
  if (const std::size_t line_end = text.rfind('\n'); line_end != std::string_view::npos) return line_end + 1;
  std::size_t end = text.size();
  while (end > 1 && (static_cast<unsigned char>(text[end - 1]) & 0xC0) == 0x80) --end;
  return end > 1 ? end - 1 : text.size();
}

/// Reads a file once. Says why it is left out; empty: it is not.
std::string_view cut_into_pieces(const SourceFile& file, std::string& contents, std::vector<Piece>& pieces) {
  const data::FileReader reader(file.path);
  for (std::int64_t offset = 0; offset < file.nbytes;) {
    // As even as line ends allow, rather than one small rest.
    const std::int64_t left = file.nbytes - offset;
    const std::int64_t count = (left + kPieceNbytes - 1) / kPieceNbytes;
    const std::int64_t nbytes = (left + count - 1) / count;
    if (!reader.read(offset, nbytes, contents)) return "unreadable";
    if (offset + nbytes < file.nbytes) contents.resize(end_of_piece(contents));
    if (const auto problem = data::problem_with_text(contents); !problem.empty()) return problem;
    pieces.push_back({file.path, offset, static_cast<std::int64_t>(contents.size()), data::hash_of(contents)});
    offset += pieces.back().nbytes;
  }
  return {};
}

std::int64_t nbytes_from(const std::vector<Piece>& pieces, std::size_t first) {
  std::int64_t nbytes = 0;
  for (std::size_t i = first; i < pieces.size(); ++i) nbytes += pieces[i].nbytes;
  return nbytes;
}

/// Reads every file once; keeps what is text and, unless `keeps_duplicates`, not seen before.
std::vector<Piece> usable_pieces(data::Listing listing, bool keeps_duplicates, CorpusInfo& info) {
  std::vector<Piece> usable, pieces;
  std::unordered_set<std::string> seen;
  std::string contents;
  for (const SourceFile& file : listing.files) {
    pieces.clear();
    std::string_view problem = cut_into_pieces(file, contents, pieces);
    if (problem.empty()) {
      const std::size_t before = usable.size();
      for (Piece& piece : pieces)
        if (seen.insert(piece.content_hash).second || keeps_duplicates) usable.push_back(std::move(piece));
      if (usable.size() == before)
        problem = "duplicate";
      else if (const std::int64_t kept = nbytes_from(usable, before); kept < file.nbytes)
        listing.left_out.add("parts that are duplicates", file.name, file.nbytes - kept);
    }
    if (!problem.empty()) listing.left_out.add(problem, file.name, file.nbytes);
  }
  info.left_out = listing.left_out.take();
  return usable;
}

/// "3 files: another suffix (the largest: notes.cpp, 3,300,000 bytes); ..."
std::string describe(const std::vector<LeftOutFiles>& left_out) {
  std::string text;
  for (const LeftOutFiles& one : left_out) {
    text += fmt::format("{}{} {}: {} (the largest: {}, {} bytes)", text.empty() ? "" : "; ", one.files,
                        one.files == 1 ? "file" : "files", one.reason, one.largest, one.largest_nbytes);
  }
  return text.empty() ? "there is no file" : text;
}

void shuffle(std::vector<Piece>& files, std::uint64_t seed) {
  data::Random random(seed);
  for (std::size_t i = files.size(); i > 1; --i) std::swap(files[i - 1], files[random.below(i)]);
}

void keep_up_to(std::vector<Piece>& files, std::int64_t max_nbytes) {
  std::int64_t sum = 0;
  std::size_t kept = 0;
  while (kept < files.size() && sum < max_nbytes) sum += files[kept++].nbytes + 1;
  files.resize(kept);
}

std::int64_t count_files(const std::vector<Piece>& pieces) {
  std::unordered_set<std::string> paths;
  for (const Piece& piece : pieces) paths.insert(piece.path.native());
  return static_cast<std::int64_t>(paths.size());
}

/// How many of the first files are validation: the count whose bytes come closest to the target.
std::size_t validation_count(const std::vector<Piece>& files, double target) {
  double sum = 0, best = target;
  std::size_t count = 0;
  for (std::size_t i = 0; i + 1 < files.size() && sum < target; ++i) {
    sum += static_cast<double>(files[i].nbytes + 1);
    if (std::abs(sum - target) < best) best = std::abs(sum - target), count = i + 1;
  }
  return count;
}

/// How many of the first pieces are validation; 0: the end of the last one is.
std::size_t split(std::vector<Piece>& pieces, double target) {
  const std::size_t count = validation_count(pieces, target);
  double nbytes = count > 0 ? 0 : static_cast<double>(pieces.back().nbytes);
  for (std::size_t i = 0; i < count; ++i) nbytes += static_cast<double>(pieces[i].nbytes);
  if (nbytes >= target / 2) return count;
  // Small files beside large ones are too little, and one large file too much: the end of the largest is right.
  std::iter_swap(std::ranges::max_element(pieces, {}, &Piece::nbytes), pieces.end() - 1);
  return 0;
}

/// One split on its way to disk, with its byte counts.
class SplitWriter {
 public:
  SplitWriter(const fs::path& path, data::FileHash& of_both) : writer_(path), of_both_(of_both) {}
  void append(std::string_view bytes) {
    writer_.append(bytes);
    hash_.add(bytes);
    of_both_.add(bytes);
    for (const char c : bytes) ++histogram_[static_cast<unsigned char>(c)];
  }
  void finish() { writer_.finish(); }
  std::int64_t nbytes() const { return writer_.nbytes(); }
  double entropy_nats() const { return data::entropy_nats(histogram_); }
  /// Of what is in the file.
  std::string hash() const { return hash_.text(); }

 private:
  data::FileWriter writer_;
  data::FileHash hash_;
  data::FileHash& of_both_;  ///< of both splits, as they come
  data::Histogram histogram_{};
};

/// Where to cut a text so that about `tail_nbytes` are after it: after a line end where there is one, never
/// inside a character.
std::size_t cut_position(std::string_view text, double tail_nbytes) {
  const auto wanted = static_cast<std::size_t>(std::max(0.0, static_cast<double>(text.size()) - tail_nbytes));
  const std::size_t line_end = text.rfind('\n', wanted);
  if (line_end != std::string_view::npos && line_end + 1 > wanted / 2) return line_end + 1;
  std::size_t cut = wanted;
  while (cut > 0 && cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

/// Returns the hashes of the files.
data::Parts write_splits(std::vector<Piece>& files, double validation_fraction, const fs::path& folder,
                         CorpusInfo& info) {
  double total = 0;
  for (const Piece& file : files) total += static_cast<double>(file.nbytes + 1);
  const double target = total * validation_fraction;
  const std::size_t first_train = validation_fraction == 1 ? files.size() : split(files, target);
  data::FileHash hash;
  SplitWriter validation(folder / data::kValidationFile, hash);
  SplitWriter train(folder / data::kTrainFile, hash);
  std::string contents;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!data::FileReader(files[i].path).read(files[i].offset, files[i].nbytes, contents) ||
        data::hash_of(contents) != files[i].content_hash) {
      throw IoError(fmt::format("{}: changed while the corpus was packed; try again", files[i].path.string()));
    }
    contents += kSeparator;
    std::string_view text = contents;
    if (first_train == 0 && i + 1 == files.size()) {
      // No whole file is small enough for validation: it gets the end of the last one.
      const std::size_t cut = cut_position(text, target);
      validation.append(text.substr(cut));
      text = text.substr(0, cut);
    }
    (i < first_train ? validation : train).append(text);
  }
  validation.finish();
  train.finish();
  info.train_nbytes = train.nbytes();
  info.validation_nbytes = validation.nbytes();
  info.train_targets = info.train_tokens();
  info.validation_targets = info.validation_tokens();
  info.train_unigram_entropy_nats = train.entropy_nats();
  info.validation_unigram_entropy_nats = validation.entropy_nats();
  info.hash = hash.text();
  return {{}, {}, train.hash(), validation.hash()};
}

/// What decides besides text and size; empty for a file that was named.
std::string suffixes_text(const CorpusOptions& options) {
  std::error_code error;
  const bool all = std::find(options.suffixes.begin(), options.suffixes.end(), "") != options.suffixes.end();
  if (all || !fs::is_directory(options.source, error)) return "";
  return fmt::format(" that end in {}", fmt::join(options.suffixes, " "));
}

/// A folder that holds something else is never replaced.
void check_target(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  const bool ours =
      fs::is_directory(folder, error) && (fs::exists(folder / data::kCorpusFile, error) || fs::is_empty(folder, error));
  if (!ours) {
    throw IoError(fmt::format("{}: exists and holds no packed corpus; choose another folder", folder.string()));
  }
}

void create_parents(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (error) throw IoError(fmt::format("{}: cannot create: {}", folder.parent_path().string(), error.message()));
}

/// A corpus of files that stay where they are.
CorpusInfo refer_to(const data::TokenFiles& tokens, const CorpusOptions& options, const fs::path& folder) {
  const std::string fingerprint = data::fingerprint(tokens);
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  check_target(folder);
  CorpusInfo info = data::scan(tokens);
  info.folder = folder;
  info.source = options.source.string();
  create_parents(folder);
  data::TemporaryFolder temporary(folder);
  data::write_corpus_json(temporary.path(), info, fingerprint, tokens.parts);
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  temporary.replace(folder);
  return info;
}

/// Of every kMixtureSequences, by largest remainders.
std::vector<std::int64_t> shares_of(const std::vector<MixedCorpus>& mixture) {
  double sum = 0, largest = 0;
  for (const MixedCorpus& one : mixture) {
    if (!(one.weight > 0 && std::isfinite(one.weight))) {
      throw ConfigError(
          fmt::format("corpus: {}: got the weight {}, want one above 0", one.source.string(), one.weight));
    }
    largest = std::max(largest, one.weight);
  }
  for (const MixedCorpus& one : mixture) sum += one.weight / largest;  // which is finite
  std::vector<std::int64_t> shares;
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t left = kMixtureSequences;
  for (std::size_t i = 0; i < mixture.size(); ++i) {
    const double share = kMixtureSequences * (mixture[i].weight / largest / sum);
    shares.push_back(static_cast<std::int64_t>(share));
    remainders.emplace_back(std::floor(share) - share, i);
    left -= shares.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::int64_t k = 0; k < left; ++k) ++shares[remainders[static_cast<std::size_t>(k)].second];
  for (std::size_t i = 0; i < mixture.size(); ++i) {
    if (shares[i] > 0) continue;
    throw ConfigError(fmt::format("corpus: {}: its weight {} is less than one sequence in {}; leave it out",
                                  mixture[i].source.string(), mixture[i].weight, kMixtureSequences));
  }
  return shares;
}

void check_same_tokens(const CorpusInfo& a, const CorpusInfo& b) {
  const bool bytes = a.tokens.nbytes == 1;
  if (bytes == (b.tokens.nbytes == 1) && a.tokens.tokenizer == b.tokens.tokenizer) return;
  const auto kind = [](const CorpusInfo& info) {
    return info.tokens.nbytes == 1         ? std::string("bytes of text")
           : info.tokens.tokenizer.empty() ? "tokens of an unknown tokenizer"
                                           : "tokens of " + info.tokens.tokenizer;
  };
  throw ConfigError(fmt::format("corpus: a mixture has tokens of one kind, but {} has {}, and {} has {}", a.source,
                                kind(a), b.source, kind(b)));
}

/// The files of a corpus that is packed, with what their tokens are.
void add_parts(std::vector<data::Part>& parts, const std::vector<data::Part>& more, int token_nbytes) {
  for (const data::Part& part : more) {
    parts.push_back(part);
    if (part.token_nbytes == 0) parts.back().token_nbytes = token_nbytes;
  }
}

/// What `member` adds to `info`, of which it is `share` by sequences.
void add_member(CorpusInfo& info, const CorpusInfo& member, double share) {
  info.tokens.nbytes = std::max(info.tokens.nbytes, member.tokens.nbytes);
  info.tokens.has_context |= member.tokens.has_context;
  info.tokens.largest = std::max(info.tokens.largest, member.tokens.largest);
  info.train_targets += member.train_targets;
  info.validation_targets += member.validation_targets;
  info.files += member.files;
  info.left_out.insert(info.left_out.end(), member.left_out.begin(), member.left_out.end());
  info.train_unigram_entropy_nats += share * member.train_unigram_entropy_nats;
  info.validation_unigram_entropy_nats += share * member.validation_unigram_entropy_nats;
}

/// A corpus of others, whose files stay where they are.
CorpusInfo pack_mixture(const CorpusOptions& options, const fs::path& folder) {
  const std::vector<std::int64_t> shares = shares_of(options.mixture);
  CorpusInfo info;
  info.folder = folder;
  info.source = options.source.string();
  data::Parts parts;
  std::string fingerprint = "mixture";
  double text_nbytes = 0;
  CorpusInfo first;
  for (std::size_t i = 0; i < options.mixture.size(); ++i) {
    CorpusOptions one = options;
    one.mixture.clear();
    one.source = options.mixture[i].source;
    one.folder = options.mixture[i].folder;
    const CorpusInfo member = pack_corpus(one);
    const data::StoredCorpus stored = data::read_corpus_json(member.folder);
    if (i == 0) {
      info.tokens = member.tokens;
      first = member;
    }
    check_same_tokens(first, member);
    const double share = static_cast<double>(shares[i]) / kMixtureSequences;
    add_member(info, member, share);
    // Not known of one: of none.
    text_nbytes = member.tokens.text_nbytes > 0 && (i == 0 || text_nbytes > 0)
                      ? text_nbytes + share * member.tokens.text_nbytes
                      : 0;
    add_parts(parts.train, stored.parts.train, member.tokens.nbytes);
    add_parts(parts.validation, stored.parts.validation, member.tokens.nbytes);
    info.members.push_back({member.source, shares[i], member.train_tokens(), member.validation_tokens(),
                            member.folder.string(), member.hash});
    fingerprint += fmt::format(" {} {}", member.hash, shares[i]);
  }
  info.tokens.text_nbytes = text_nbytes;
  for (const MixtureMember& member : info.members) {
    info.train_nbytes += member.train_tokens * info.tokens.nbytes;
    info.validation_nbytes += member.validation_tokens * info.tokens.nbytes;
  }
  info.hash = data::hash_of(fingerprint);
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  check_target(folder);
  create_parents(folder);
  data::TemporaryFolder temporary(folder);
  data::write_corpus_json(temporary.path(), info, fingerprint, parts);
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  temporary.replace(folder);
  return info;
}

}  // namespace

CorpusInfo pack_corpus(const CorpusOptions& options) {
  check_options(options);
  // "x/" and "x" are the same folder; the temporary one goes beside it, not into it.
  fs::path folder = fs::absolute(options.folder).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  if (!options.mixture.empty()) return pack_mixture(options, folder);
  if (const auto tokens = data::find_token_files(options.source)) return refer_to(*tokens, options, folder);
  data::Listing listing = data::list_files(options);
  const std::string fingerprint = data::fingerprint(options, listing);
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  check_target(folder);

  CorpusInfo info;
  info.folder = folder;
  info.source = options.source.string();
  std::vector<Piece> files = usable_pieces(std::move(listing), options.validation_fraction == 1, info);
  if (files.empty()) {
    const bool bounded = options.max_file_nbytes < std::numeric_limits<std::int64_t>::max();
    throw IoError(fmt::format(
        "{}: no usable text: {}; taken are text files (UTF-8){}{}", info.source, describe(info.left_out),
        bounded ? fmt::format(" of at most {} bytes", options.max_file_nbytes) : "", suffixes_text(options)));
  }
  shuffle(files, options.seed);
  if (options.max_nbytes > 0) keep_up_to(files, options.max_nbytes);
  info.files = count_files(files);

  create_parents(folder);
  data::TemporaryFolder temporary(folder);
  const data::Parts parts = write_splits(files, options.validation_fraction, temporary.path(), info);
  data::write_corpus_json(temporary.path(), info, fingerprint, parts);
  // Another rank may have packed the same meanwhile; its readers keep what they have.
  if (auto found = data::find_packed(folder, fingerprint)) return *found;
  temporary.replace(folder);
  return info;
}

}  // namespace zero
