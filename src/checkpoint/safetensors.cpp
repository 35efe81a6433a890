#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthNbytes = 8;
/// What is no tensor in the header.
constexpr std::string_view kMetadataName = "__metadata__";

[[noreturn]] void damaged(const std::string& what, const std::string& why) {
  throw CheckpointError(fmt::format("'{}' is not a safetensors file, or is damaged: {}", what, why));
}

std::uint64_t offset_of(const Json& value, const std::string& what) {
  if (!value.is_number_unsigned()) damaged(what, "an offset is not a whole number");
  return value.get<std::uint64_t>();
}

SafetensorsEntry parse_entry(const std::string& name, const Json& value, const std::string& what) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    damaged(what, fmt::format("tensor '{}' has not exactly dtype, shape and data_offsets", name));
  }
  SafetensorsEntry entry;
  entry.name = name;
  const Json& dtype = value["dtype"];
  const auto type = dtype.is_string() ? parse_element_type(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!type) damaged(what, fmt::format("tensor '{}' has the unknown dtype {}", name, dtype.dump()));
  entry.dtype = *type;
  const Json& shape = value["shape"];
  if (!shape.is_array()) damaged(what, fmt::format("the shape of '{}' is not a list", name));
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) damaged(what, fmt::format("the shape of '{}' has {}", name, size.dump()));
    entry.shape.push_back(size.get<std::int64_t>());
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) damaged(what, fmt::format("'{}' has no two offsets", name));
  entry.begin = offset_of(offsets[0], what);
  entry.end = offset_of(offsets[1], what);
  const auto nbytes = static_cast<std::uint64_t>(checked_numel(entry.shape, what)) * element_nbytes(*type);
  if (entry.end < entry.begin || entry.end - entry.begin != nbytes) {
    damaged(what, fmt::format("the bytes of '{}' do not fit its shape", name));
  }
  return entry;
}

}  // namespace

std::int64_t checked_numel(const std::vector<std::int64_t>& shape, const std::string& what) {
  // Below 2^59, so that bytes of any type do not overflow either.
  constexpr std::int64_t kMost = std::int64_t{1} << 59;
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) {
    damaged(what, "a shape has a negative size");
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) {
    if (size > kMost / numel) damaged(what, "a shape is larger than any memory");
    numel *= size;
  }
  return numel;
}

std::string make_safetensors_header(SafetensorsHeader& header, std::size_t alignment) {
  std::string text = "{";
  const auto add = [&text](const std::string& name, const Json& value) {
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", Json(name).dump(), value.dump());
  };
  std::uint64_t offset = 0;
  try {
    if (!header.metadata.empty()) add(std::string(kMetadataName), header.metadata);
    for (auto& entry : header.entries) {
      if (entry.name == kMetadataName) {
        throw CheckpointError(fmt::format(
            "'{}' is a parameter or a buffer of this model, but safetensors files keep that name for notes about "
            "the file; give it another name in the module",
            kMetadataName));
      }
      entry.begin = offset;
      offset += static_cast<std::uint64_t>(checked_numel(entry.shape, entry.name)) * element_nbytes(entry.dtype);
      entry.end = offset;
      add(entry.name, {{"dtype", element_type_name(entry.dtype)},
                       {"shape", entry.shape},
                       {"data_offsets", {entry.begin, entry.end}}});
    }
  } catch (const Json::exception& error) {
    throw CheckpointError(fmt::format("a name cannot be written to a file: {}", error.what()));
  }
  text += "}";
  const std::size_t unpadded = kLengthNbytes + text.size();
  text.append((alignment - unpadded % alignment) % alignment, ' ');
  if (text.size() > kMaxHeaderNbytes) {
    throw CheckpointError(fmt::format("{} tensors make a header of {} bytes; readers take at most {}",
                                      header.entries.size(), text.size(), kMaxHeaderNbytes));
  }
  header.data_begin = kLengthNbytes + text.size();
  std::string out(kLengthNbytes, '\0');
  for (std::size_t i = 0; i < kLengthNbytes; ++i) {
    out[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xff);
  }
  return out + text;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t file_nbytes, const std::string& what) {
  const Json json = parse_json(text);
  if (!json.is_object()) damaged(what, "the header is not a JSON object");
  SafetensorsHeader header;
  header.data_begin = kLengthNbytes + text.size();
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadataName) {
      header.entries.push_back(parse_entry(name, value, what));
      continue;
    }
    if (!value.is_object()) damaged(what, "__metadata__ is not an object");
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) damaged(what, "__metadata__ holds something that is not a string");
      header.metadata[key] = entry.get<std::string>();
    }
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const auto& a, const auto& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::uint64_t expected = 0;
  for (const auto& entry : header.entries) {
    if (entry.begin != expected) damaged(what, fmt::format("there is a hole before '{}'", entry.name));
    expected = entry.end;
  }
  if (file_nbytes < header.data_begin || file_nbytes - header.data_begin != expected) {
    damaged(what, fmt::format("it has {} bytes, its header says {}", file_nbytes, header.data_begin + expected));
  }
  return header;
}

SafetensorsHeader read_safetensors_header(io::File& file, const std::string& path) {
  const std::uint64_t file_nbytes = file.size();
  if (file_nbytes < kLengthNbytes) damaged(path, fmt::format("it has {} bytes", file_nbytes));
  std::array<std::byte, kLengthNbytes> length{};
  file.read(0, length);
  file.drain();
  std::uint64_t nbytes = 0;
  for (std::size_t i = 0; i < kLengthNbytes; ++i) {
    nbytes |= static_cast<std::uint64_t>(std::to_integer<unsigned>(length[i])) << (8 * i);
  }
  if (nbytes > kMaxHeaderNbytes || nbytes > file_nbytes - kLengthNbytes) {
    damaged(path, fmt::format("its header would have {} bytes", nbytes));
  }
  std::string text(nbytes, '\0');
  file.read(kLengthNbytes, std::as_writable_bytes(std::span(text)));
  file.drain();
  return parse_safetensors_header(text, file_nbytes, path);
}

}  // namespace zero::checkpoint
