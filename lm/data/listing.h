#pragma once
// Which files a corpus is made of.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero/lm/data.h"

namespace zero::data {

struct SourceFile {
  std::string name;  // relative to the source, '/' between folders
  std::filesystem::path path;
  std::int64_t nbytes = 0;
  std::int64_t modified_ns = 0;
};

/// Counts files that are left out, by reason.
class LeftOut {
 public:
  void add(std::string_view reason, const std::string& name, std::int64_t nbytes);
  std::vector<LeftOutFiles> take() { return std::move(reasons_); }

 private:
  std::vector<LeftOutFiles> reasons_;
};

struct Listing {
  std::vector<SourceFile> files;  // by name, bytewise
  LeftOut left_out;
};

/// Walks the source. Throws IoError when it is missing.
Listing list_files(const CorpusOptions& options);

/// Of everything that decides the packed bytes: options, names, sizes and times.
std::string fingerprint(const CorpusOptions& options, const Listing& listing);

/// Why bytes are no text: empty when they are UTF-8 without zero bytes.
std::string_view problem_with_text(std::string_view bytes);

/// XXH3, 128 bits, as 32 hexadecimal digits.
std::string hash_of(std::string_view bytes);

}  // namespace zero::data
