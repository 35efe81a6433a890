#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "data/corpus_json.h"
#include "data/files.h"
#include "data/listing.h"
#include "zero/data.h"
#include "zero/errors.h"

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
  const CorpusInfo info = data::read_corpus_json(folder);
  const bool train = split == Split::kTrain;
  const std::filesystem::path path = folder / (train ? data::kTrainFile : data::kValidationFile);
  const auto nbytes = static_cast<std::size_t>(train ? info.train_nbytes : info.validation_nbytes);
  if (nbytes > 0) {
    owner_ = map_file(path, nbytes);
    bytes_ = {static_cast<const std::uint8_t*>(owner_.get()), nbytes};
  }
  unigram_entropy_nats_ = train ? info.train_unigram_entropy_nats : info.validation_unigram_entropy_nats;
  hash_ = info.hash;
  name_ = path.string();
}

Corpus::Corpus(std::string text) : name_("memory") {
  const auto owned = std::make_shared<const std::string>(std::move(text));
  owner_ = owned;
  bytes_ = {reinterpret_cast<const std::uint8_t*>(owned->data()), owned->size()};
  hash_ = data::hash_of(*owned);
  unigram_entropy_nats_ = zero::unigram_entropy_nats(bytes_);
}

double unigram_entropy_nats(std::span<const std::uint8_t> bytes) {
  data::Histogram histogram{};
  for (const std::uint8_t byte : bytes) ++histogram[byte];
  return data::entropy_nats(histogram);
}

}  // namespace zero
