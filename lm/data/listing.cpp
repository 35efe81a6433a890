#include "data/listing.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "zero/errors.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;

/// Raised when the packed bytes of the same files would change.
constexpr int kFormatVersion = 3;

bool wanted_suffix(const CorpusOptions& options, const std::string& name) {
  const auto small = [](std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  return std::any_of(options.suffixes.begin(), options.suffixes.end(),
                     [&](const std::string& suffix) { return small(name).ends_with(small(suffix)); });
}

/// Follows links. `walked`: found in a folder.
void add_file(const CorpusOptions& options, const fs::path& path, std::string name, bool walked, Listing& listing) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    const bool link = ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    return listing.left_out.add(link ? "link that leads nowhere" : "unreadable", name, 0);
  }
  const auto leave_out = [&](std::string_view reason) { listing.left_out.add(reason, name, status.st_size); };
  if (S_ISDIR(status.st_mode)) return listing.left_out.add("link to a folder", name, 0);
  if (!S_ISREG(status.st_mode)) return leave_out("no regular file");
  if (walked && path.filename().string().starts_with('.')) return leave_out("hidden");
  if (walked && !wanted_suffix(options, name)) return leave_out("another suffix");
  if (status.st_size == 0) return leave_out("empty");
  if (status.st_size < options.min_file_nbytes) return leave_out("too small");
  if (status.st_size > options.max_file_nbytes) return leave_out("too large");
  const std::int64_t modified_ns = status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
  listing.files.push_back({std::move(name), path, status.st_size, modified_ns});
}

void walk(const CorpusOptions& options, const fs::path& root, Listing& listing) {
  if (::access(root.c_str(), R_OK | X_OK) != 0)
    throw IoError(fmt::format("{}: cannot list the corpus source: {}", root.string(), std::strerror(errno)));
  std::error_code error;
  fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, error);
  while (!error && at != fs::recursive_directory_iterator()) {
    std::error_code ignored;
    const std::string name = at->path().lexically_relative(root).generic_string();
    if (at->is_directory(ignored) && !at->is_symlink(ignored)) {
      const bool hidden = at->path().filename().string().starts_with('.');
      if (hidden) at.disable_recursion_pending();
      if (hidden) listing.left_out.add("hidden folder", name, 0);
      if (!hidden && ::access(at->path().c_str(), R_OK | X_OK) != 0) listing.left_out.add("unreadable folder", name, 0);
    } else {
      add_file(options, at->path(), name, /*walked=*/true, listing);
    }
    at.increment(error);
  }
  if (error) throw IoError(fmt::format("{}: cannot list the corpus source: {}", root.string(), error.message()));
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
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F)) {
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
    add_file(options, root, root.filename().string(), /*walked=*/false, listing);
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return listing;
}

std::string fingerprint(const CorpusOptions& options, const Listing& listing) {
  std::string text = fmt::format("{} {} {} {} {} {:.17g}", kFormatVersion, options.seed, options.max_nbytes,
                                 options.min_file_nbytes, options.max_file_nbytes, options.validation_fraction);
  if (options.validation_fraction == 1) text += " with duplicates";
  for (const SourceFile& file : listing.files) {
    text += fmt::format("\n{}\t{}\t{}", file.name, file.nbytes, file.modified_ns);
  }
  return hash_of(text);
}

std::string_view problem_with_text(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF")) return "UTF-16 (want UTF-8: iconv)";
  if (std::memchr(bytes.data(), 0, bytes.size()) != nullptr) return "binary (a zero byte)";
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    if (length == 0) return "not UTF-8 (Latin-1? iconv)";
    bytes.remove_prefix(length);
  }
  return {};
}

void LeftOut::add(std::string_view reason, const std::string& name, std::int64_t nbytes) {
  auto at = std::find_if(reasons_.begin(), reasons_.end(), [&](const auto& one) { return one.reason == reason; });
  if (at == reasons_.end()) at = reasons_.insert(at, LeftOutFiles{.reason = std::string(reason)});
  ++at->files;
  at->nbytes += nbytes;
  if (at->largest.empty() || nbytes > at->largest_nbytes) at->largest = name, at->largest_nbytes = nbytes;
}

std::string hash_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace zero::data
