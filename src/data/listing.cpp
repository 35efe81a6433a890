#include "data/listing.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "zero/errors.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

/// Raised when the packed bytes of the same files would change.
constexpr int kFormatVersion = 1;

bool wanted_suffix(const CorpusOptions& options, const std::string& name) {
  return std::any_of(options.suffixes.begin(), options.suffixes.end(),
                     [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void add_file(const CorpusOptions& options, const fs::path& path, std::string name, Listing& listing) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    ++listing.unreadable;
    return;
  }
  if (!S_ISREG(status.st_mode)) return;
  if (status.st_size < std::max<std::int64_t>(1, options.min_file_nbytes) ||
      status.st_size > options.max_file_nbytes) {
    ++listing.wrong_size;
    return;
  }
  const std::int64_t modified_ns =
      status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
  listing.files.push_back({std::move(name), path, status.st_size, modified_ns, {}});
}

void walk(const CorpusOptions& options, const fs::path& root, Listing& listing) {
  std::error_code error;
  fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, error);
  while (!error && at != fs::recursive_directory_iterator()) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    const bool link = at->is_symlink(ignored);
    const bool hidden = name.starts_with('.');
    if (at->is_directory(ignored)) {
      if (hidden || link) at.disable_recursion_pending();
    } else if (!hidden && !link && wanted_suffix(options, name)) {
      add_file(options, at->path(), at->path().lexically_relative(root).generic_string(), listing);
    }
    at.increment(error);
  }
  if (error)
    throw IoError(fmt::format("{}: cannot list the corpus source: {}", root.string(), error.message()));
}

/// Length of the UTF-8 sequence at `bytes`, or 0 when there is none (also overlong forms and surrogates).
std::size_t utf8_length(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length > bytes.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (length >= 3) {
    const unsigned char second = byte(1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
      return 0;
    }
  }
  return length;
}

}  // namespace

Listing list_files(const CorpusOptions& options) {
  std::error_code error;
  const fs::path root = fs::canonical(options.source, error);
  if (error) {
    throw IoError(fmt::format("{}: cannot find the corpus source: {}; give a file or a folder of text",
                              options.source.string(), error.message()));
  }
  Listing listing;
  if (fs::is_directory(root, error)) {
    walk(options, root, listing);
  } else {
    add_file(options, root, root.filename().string(), listing);
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return listing;
}

std::string fingerprint(const CorpusOptions& options, const Listing& listing) {
  std::string text =
      fmt::format("{} {} {} {} {} {:.17g}", kFormatVersion, options.seed, options.max_nbytes,
                  options.min_file_nbytes, options.max_file_nbytes, options.validation_fraction);
  for (const SourceFile& file : listing.files) {
    text += fmt::format("\n{}\t{}\t{}", file.name, file.nbytes, file.modified_ns);
  }
  return hash_of(text);
}

bool is_text(std::string_view bytes) {
  if (std::memchr(bytes.data(), 0, bytes.size()) != nullptr) return false;
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string hash_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace zero::data
