#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "data/corpus_json.h"
#include "data/files.h"
#include "data/listing.h"
#include "data/token_files.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero {
namespace {

/// The whole file, read-only; unmapped with the last owner.
std::shared_ptr<const void> map_file(const std::filesystem::path& path, std::size_t nbytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) data::throw_errno(path, "cannot open");
  void* address = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    errno = error;
    data::throw_errno(path, "cannot map");
  }
  ::close(fd);
  return {address, [nbytes](const void* mapped) { ::munmap(const_cast<void*>(mapped), nbytes); }};
}

}  // namespace

Corpus::Corpus(const std::filesystem::path& folder, Split split) {
  const data::StoredCorpus stored = data::read_corpus_json(folder);
  const bool train = split == Split::kTrain;
  token_nbytes_ = stored.info.tokens.nbytes;
  has_context_ = stored.info.tokens.has_context;
  for (const data::Part& part : train ? stored.parts.train : stored.parts.validation) {
    if (part.nbytes == 0) continue;
    const auto owner = map_file(part.path, static_cast<std::size_t>(part.skip_nbytes + part.nbytes));
    const auto* tokens = static_cast<const std::uint8_t*>(owner.get()) + part.skip_nbytes;
    const int token_nbytes = part.token_nbytes > 0 ? part.token_nbytes : token_nbytes_;
    parts_.push_back({owner, tokens, size_, part.nbytes / token_nbytes, token_nbytes});
    size_ += parts_.back().count;
  }
  for (std::int64_t first = 0; const MixtureMember& member : stored.info.members) {
    sections_.push_back({first, train ? member.train_tokens : member.validation_tokens, member.sequences});
    first += sections_.back().size;
  }
  if (sections_.empty()) sections_ = {{0, size_, kMixtureSequences}};
  unigram_entropy_nats_ = train ? stored.info.train_unigram_entropy_nats : stored.info.validation_unigram_entropy_nats;
  hash_ = stored.info.hash;
  name_ = (folder / (train ? data::kTrainFile : data::kValidationFile)).string();
}

bool is_packed_well(const std::filesystem::path& folder) {
  try {
    return data::is_intact(data::read_corpus_json(folder));
  } catch (const IoError&) {
    return false;
  }
}

Corpus::Corpus(std::string text) : name_("memory") {
  const auto owned = std::make_shared<const std::string>(std::move(text));
  size_ = static_cast<std::int64_t>(owned->size());
  parts_.push_back({owned, reinterpret_cast<const std::uint8_t*>(owned->data()), 0, size_});
  sections_ = {{0, size_, kMixtureSequences}};
  hash_ = data::hash_of(*owned);
  unigram_entropy_nats_ = zero::unigram_entropy_nats({parts_[0].tokens, owned->size()});
}

void Corpus::copy(std::int64_t first, std::span<std::int64_t> tokens) const {
  copy_raw(first, tokens);
  if (!has_context_) return;
  for (std::int64_t& token : tokens) token &= ~data::kContextBit;
}

void Corpus::copy_targets(std::int64_t first, std::span<std::int64_t> targets) const {
  copy_raw(first, targets);
  if (!has_context_) return;
  for (std::int64_t& target : targets) {
    if (target & data::kContextBit) target = kNoTarget;
  }
}

std::int64_t Corpus::count_targets(std::int64_t first, std::int64_t count) const {
  if (!has_context_) return count;
  std::vector<std::int64_t> targets(static_cast<std::size_t>(count));
  copy_targets(first, targets);
  return count - std::ranges::count(targets, kNoTarget);
}

void Corpus::copy_raw(std::int64_t first, std::span<std::int64_t> tokens) const {
  auto part = std::ranges::upper_bound(parts_, first, {}, [](const Part& p) { return p.first + p.count; });
  while (!tokens.empty()) {
    const std::int64_t offset = first - part->first;
    const std::int64_t count = std::min(static_cast<std::int64_t>(tokens.size()), part->count - offset);
    const int nbytes = part->token_nbytes;
    data::widen({part->tokens + offset * nbytes, static_cast<std::size_t>(count * nbytes)}, nbytes,
                tokens.first(static_cast<std::size_t>(count)));
    tokens = tokens.subspan(static_cast<std::size_t>(count));
    first += count;
    ++part;
  }
}

double unigram_entropy_nats(std::span<const std::uint8_t> bytes) {
  data::Histogram histogram{};
  for (const std::uint8_t byte : bytes) ++histogram[byte];
  return data::entropy_nats(histogram);
}

}  // namespace zero
