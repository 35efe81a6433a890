#pragma once
// The safetensors layout: 8 bytes little-endian header length, that many bytes of JSON, data. The JSON maps
// each tensor's name to dtype, shape and the range of its bytes in the data; ranges follow each other without
// holes; "__metadata__" maps strings to strings.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/element_type.h"
#include "io/file_system.h"

namespace zero::checkpoint {

/// Most bytes of JSON in a header: the limit of the reference implementation.
inline constexpr std::uint64_t kMaxHeaderNbytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  ElementType dtype = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the data
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  ///< in the order of their data
  std::uint64_t data_begin = 0;           ///< bytes from the start of the file
  std::uint64_t data_nbytes() const { return entries.empty() ? 0 : entries.back().end; }
};

/// Sets begin and end of every entry, in order, and returns length and JSON, padded with spaces so that the
/// data begins at a multiple of `alignment`. Throws CheckpointError for names that are not UTF-8
/// and for more entries than a header can hold.
std::string make_safetensors_header(SafetensorsHeader& header, std::size_t alignment);

/// Reads and checks the header against the file's size. Memory: a small multiple of the header's length,
/// which is checked before it is believed. Throws CheckpointError naming the file.
SafetensorsHeader read_safetensors_header(io::File& file, const std::string& path);
/// From the JSON alone; `file_nbytes` is the file's size. `what` names the file in errors.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t file_nbytes, const std::string& what);

/// Elements of a shape. Throws CheckpointError (with `what`) for negative sizes and overflow.
std::int64_t checked_numel(const std::vector<std::int64_t>& shape, const std::string& what);

}  // namespace zero::checkpoint
