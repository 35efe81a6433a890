#pragma once
// Which files a corpus is made of.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "zero/data.h"

namespace zero::data {

struct SourceFile {
  std::string name;  // relative to the source, '/' between folders
  std::filesystem::path path;
  std::int64_t nbytes = 0;
  std::int64_t modified_ns = 0;
  std::string content_hash;  // set when read
};

struct Listing {
  std::vector<SourceFile> files;  // by name, bytewise
  std::int64_t wrong_size = 0;
  std::int64_t unreadable = 0;
};

/// Walks the source. Throws IoError when it is missing.
Listing list_files(const CorpusOptions& options);

/// Of everything that decides the packed bytes: options, names, sizes and times.
std::string fingerprint(const CorpusOptions& options, const Listing& listing);

/// UTF-8 without zero bytes.
bool is_text(std::string_view bytes);

/// XXH3, 128 bits, as 32 hexadecimal digits.
std::string hash_of(std::string_view bytes);

}  // namespace zero::data
