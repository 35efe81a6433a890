#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/json_text.h"
#include "checkpoint/safetensors.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormatName = "zerotorch checkpoint";
/// Between the last member and its checksum: what the checksum covers ends with it.
constexpr std::string_view kChecksumMember = ",\n\"checksum\":";
/// Some millions of pieces. Parsed it takes several times as much memory.
constexpr std::uint64_t kMaxManifestNbytes = std::uint64_t{256} << 20;
constexpr int kMaxDims = 64;

constexpr std::string_view kIsland = "island";

/// A name that a kind may have.
bool is_kind(std::string_view name) {
  constexpr std::size_t kMostCharacters = 64;
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && name.size() <= kMostCharacters && std::all_of(name.begin(), name.end(), fits);
}

/// Typed access to JSON that anybody may have written.
class Reader {
 public:
  Reader(const Json& json, const std::string& where) : json_(json), where_(where) {
    if (!json.is_object()) fail("something that should be an object is not");
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError(fmt::format("'{}' is damaged or not a checkpoint's manifest: {}", where_, why));
  }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(fmt::format("'{}' is missing", key));
    return *found;
  }
  const Json& at_or_null(const char* key) const {
    static const Json kNull;
    const auto found = json_.find(key);
    return found == json_.end() ? kNull : *found;
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(fmt::format("'{}' is not a string", key));
    return value.get<std::string>();
  }
  std::int64_t integer(const char* key, std::int64_t most = std::int64_t{1} << 62) const {
    return integer_of(at(key), key, most);
  }
  std::int64_t integer_of(const Json& value, const char* key, std::int64_t most) const {
    // The library keeps whole numbers without a sign as unsigned.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      fail(fmt::format("'{}' is not a whole number from 0 to {}", key, most));
    }
    return value.get<std::int64_t>();
  }
  bool boolean(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail(fmt::format("'{}' is neither true nor false", key));
    return value.get<bool>();
  }
  const Json& array(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(fmt::format("'{}' is not a list", key));
    return value;
  }
  Checksum checksum_from(const Json& value) const {
    const auto sum = value.is_string() ? parse_hex(value.get_ref<const std::string&>()) : std::nullopt;
    if (!sum) fail("a checksum is not 16 hexadecimal digits");
    return *sum;
  }
  ElementType type(const char* key) const {
    const auto type = parse_element_type(text(key));
    if (!type) fail(fmt::format("'{}' is the unknown type '{}'", key, text(key)));
    return *type;
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  const std::string& where_;
};

// ---- to text ---------------------------------------------------------------------------------------

Json to_json(const ManifestFile& file) {
  return {{"name", file.name},
          {"nbytes", file.nbytes},
          {"header_nbytes", file.header_nbytes},
          {"header_checksum", to_hex(file.header_checksum)}};
}

Json to_json(const PiecePlace& place) {
  Json checksums = Json::array();
  for (const Checksum sum : place.checksums) checksums.push_back(to_hex(sum));
  return {{"file", place.file},
          {"offset", place.offset},
          {"begin", place.begin},
          {"numel", place.numel},
          {"checksums", std::move(checksums)}};
}

Json to_json(const ManifestTensor& tensor) {
  const TensorInfo& info = tensor.info;
  Json json = {{"name", info.name},
               {"kind", info.kind},
               {"dtype", element_type_name(info.dtype)},
               {"shape", info.shape},
               {"module_dtype", element_type_name(info.module_dtype)},
               {"trainable", info.trainable}};
  if (!info.order.dim_order.empty()) json["dim_order"] = info.order.dim_order;
  if (!info.order.boxes.empty()) json["boxes"] = info.order.boxes;
  if (!info.aliases.empty()) json["aliases"] = info.aliases;
  Json pieces = Json::array();
  for (const auto& piece : tensor.pieces) pieces.push_back(to_json(piece));
  json["pieces"] = std::move(pieces);
  return json;
}

/// Checked and in one line.
std::string embedded(const std::string& json, std::string_view what) {
  const Json parsed = parse_json(json);
  if (parsed.is_discarded()) {
    throw CheckpointError(fmt::format("{} is not valid JSON, or nested more than {} deep: '{}'", what, kMaxJsonDepth,
                                      std::string_view(json).substr(0, 200)));
  }
  return parsed.dump();
}

template <class List>
std::string lines_of(const List& list) {
  std::string text = "[";
  for (const auto& item : list) text += (text.size() > 1 ? ",\n" : "\n") + to_json(item).dump();
  return text + "\n]";
}

// ---- from text -------------------------------------------------------------------------------------

ManifestFile parse_file(const Json& json, const std::string& where) {
  const Reader read(json, where);
  ManifestFile file;
  file.name = read.text("name");
  if (file.name.empty() || file.name[0] == '.' || file.name.find_first_of("/\\") != std::string::npos ||
      file.name.find('\0') != std::string::npos) {
    read.fail(fmt::format("'{}' is not a file's name", file.name));
  }
  file.nbytes = static_cast<std::uint64_t>(read.integer("nbytes"));
  file.header_nbytes = static_cast<std::uint64_t>(read.integer("header_nbytes"));
  file.header_checksum = read.checksum_from(read.at("header_checksum"));
  if (file.header_nbytes > kMaxHeaderNbytes + 8) {
    read.fail(fmt::format("the header of '{}' would have {} bytes", file.name, file.header_nbytes));
  }
  if (file.header_nbytes > file.nbytes) read.fail(fmt::format("'{}' is shorter than its header", file.name));
  return file;
}

PiecePlace parse_place(const Json& json, std::size_t element, const std::string& where) {
  const Reader read(json, where);
  PiecePlace place;
  place.file = static_cast<int>(read.integer("file", 1 << 30));
  place.offset = static_cast<std::uint64_t>(read.integer("offset"));
  place.begin = read.integer("begin");
  place.numel = read.integer("numel", std::int64_t{1} << 59);
  for (const Json& sum : read.array("checksums")) place.checksums.push_back(read.checksum_from(sum));
  const std::uint64_t nbytes = static_cast<std::uint64_t>(place.numel) * element;
  if (place.checksums.size() != (nbytes + kBlockNbytes - 1) / kBlockNbytes) {
    read.fail("a piece has not one checksum for each of its blocks");
  }
  return place;
}

Box parse_box(const Json& json, const Reader& read) {
  Box box;
  if (!json.is_array()) read.fail("a box is not a list");
  for (const Json& range : json) {
    if (!range.is_array() || range.size() != 2) read.fail("a box's range is not a begin and an end");
    constexpr std::int64_t kMost = std::int64_t{1} << 59;
    box.emplace_back(read.integer_of(range[0], "boxes", kMost), read.integer_of(range[1], "boxes", kMost));
  }
  return box;
}

TensorInfo parse_info(const Reader& read) {
  TensorInfo info;
  info.name = read.text("name");
  info.kind = read.text("kind");
  if (!is_kind(info.kind)) read.fail(fmt::format("tensor '{}' is of the unknown kind '{}'", info.name, info.kind));
  info.dtype = read.type("dtype");
  info.module_dtype = read.type("module_dtype");
  info.trainable = read.boolean("trainable");
  for (const Json& size : read.array("shape")) {
    info.shape.push_back(read.integer_of(size, "shape", std::int64_t{1} << 59));
  }
  if (info.shape.size() > kMaxDims) read.fail(fmt::format("'{}' has too many dimensions", info.name));
  checked_numel(info.shape, read.where());
  if (const Json& order = read.at_or_null("dim_order"); !order.is_null()) {
    for (const Json& dim : read.array("dim_order"))
      info.order.dim_order.push_back(static_cast<int>(read.integer_of(dim, "dim_order", kMaxDims)));
  }
  if (const Json& boxes = read.at_or_null("boxes"); !boxes.is_null()) {
    for (const Json& box : read.array("boxes")) info.order.boxes.push_back(parse_box(box, read));
  }
  if (const auto why = problem_with(info.order, info.shape); !why.empty())
    read.fail(fmt::format("tensor '{}' {}", info.name, why));
  if (const Json& aliases = read.at_or_null("aliases"); !aliases.is_null()) {
    for (const Json& alias : read.array("aliases")) {
      if (!alias.is_string()) read.fail("an alias is not a string");
      info.aliases.push_back(alias.get<std::string>());
    }
  }
  return info;
}

/// Pieces lie in their files, behind the headers, and cover the tensor once.
void check_pieces(const ManifestTensor& tensor, const std::vector<ManifestFile>& files, const Reader& read) {
  const std::size_t element = element_nbytes(tensor.info.dtype);
  std::int64_t next = 0;
  for (const auto& piece : tensor.pieces) {
    if (piece.begin != next || piece.numel == 0) {
      read.fail(fmt::format("the pieces of '{}' do not follow each other at element {}", tensor.info.name, next));
    }
    next += piece.numel;
    if (next > tensor.info.numel()) break;
    if (static_cast<std::size_t>(piece.file) >= files.size()) {
      read.fail(fmt::format("a piece of '{}' is in file {} of {}", tensor.info.name, piece.file, files.size()));
    }
    const ManifestFile& file = files[piece.file];
    const std::uint64_t nbytes = static_cast<std::uint64_t>(piece.numel) * element;
    if (piece.offset < file.header_nbytes || piece.offset > file.nbytes || nbytes > file.nbytes - piece.offset) {
      read.fail(fmt::format("a piece of '{}' lies outside of '{}'", tensor.info.name, file.name));
    }
  }
  if (next != tensor.info.numel()) {
    read.fail(
        fmt::format("the pieces of '{}' have {} elements, its shape {}", tensor.info.name, next, tensor.info.numel()));
  }
}

/// Why the text does not have the checksum that it states; empty when it has.
std::string_view problem_with_checksum(std::string_view text) {
  const std::size_t tail = kChecksumMember.size() + 18 + 2;  // "16 digits", }, newline
  if (text.size() < tail || !text.ends_with("\"}\n")) return "it is cut off";
  const std::string_view body = text.substr(0, text.size() - tail + kChecksumMember.size());
  if (!body.ends_with(kChecksumMember)) return "its last member is not its checksum";
  const auto stated = parse_hex(text.substr(body.size() + 1, 16));
  if (!stated || text[body.size()] != '"') return "its checksum is not 16 hexadecimal digits";
  if (*stated != checksum_of(body)) return "it does not have the checksum it states";
  return {};
}

std::string manifest_text(io::FileSystem& files, const std::string& folder) {
  const std::string path = io::join(folder, kManifestName);
  if (files.kind(path) != io::FileKind::kFile) {
    throw CheckpointError(fmt::format("'{}' holds no complete checkpoint: it has no {}", folder, kManifestName));
  }
  return io::read_text(files, path, kMaxManifestNbytes);
}

}  // namespace

std::int64_t TensorInfo::numel() const { return checked_numel(shape, name); }
std::string kinds::of_island(int island, std::string_view kind) {
  return island == 0 ? std::string(kind) : fmt::format("{}{}_{}", kIsland, island, kind);
}

kinds::OfIsland kinds::parse_island(std::string_view kind) {
  if (!kind.starts_with(kIsland)) return {0, kind};
  const std::string_view rest = kind.substr(kIsland.size());
  int island = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), island);
  if (error != std::errc() || island < 1 || end == rest.data() + rest.size() || *end != '_') return {0, kind};
  return {island, std::string_view(end + 1, rest.data() + rest.size())};
}

std::string TensorInfo::key() const { return fmt::format("{}/{}", kind, name); }

const ManifestTensor* Manifest::find(std::string_view kind, std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const ManifestTensor& tensor) {
    return tensor.info.kind == kind && tensor.info.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

std::uint64_t Manifest::nbytes() const {
  std::uint64_t sum = 0;
  for (const auto& file : files) sum += file.nbytes;
  return sum;
}

std::string to_text(const Manifest& manifest) {
  try {
    std::string text = "{";
    const auto add = [&text](std::string_view key, const std::string& json) {
      text += fmt::format("{}\n\"{}\":{}", text.size() > 1 ? "," : "", key, json);
    };
    add("format", Json(kFormatName).dump());
    add("version", std::to_string(kFormatVersion));
    add("id", Json(manifest.id).dump());
    add("tag", Json(manifest.tag).dump());
    add("created_unix_ns", std::to_string(manifest.created_unix_ns));
    add("global_steps", std::to_string(manifest.global_steps));
    add("world_size", std::to_string(manifest.world_size));
    add("block_nbytes", std::to_string(kBlockNbytes));
    add("versions", embedded(manifest.versions, "versions"));
    add("state", embedded(manifest.state, "state"));
    add("client_state", embedded(manifest.client_state, "client_state"));
    add("config", embedded(manifest.config, "config"));
    add("files", lines_of(manifest.files));
    add("tensors", lines_of(manifest.tensors));
    text += kChecksumMember;
    if (text.size() + 64 > kMaxManifestNbytes) {
      throw CheckpointError(
          fmt::format("the checkpoint's manifest has {} bytes, readers take at most {}: {} tensors in {} files; "
                      "save with fewer ranks or larger units (zerotorch.unit_numel)",
                      text.size(), kMaxManifestNbytes, manifest.tensors.size(), manifest.files.size()));
    }
    return text + fmt::format("\"{}\"}}\n", to_hex(checksum_of(text)));
  } catch (const Json::exception& error) {
    throw CheckpointError(fmt::format("the checkpoint's manifest cannot be written: {}", error.what()));
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  if (const auto problem = problem_with_checksum(text); !problem.empty()) {
    throw CheckpointError(fmt::format("'{}' is damaged or not a checkpoint's manifest: {}", where, problem));
  }
  const Json json = parse_json(text);
  const Reader read(json, where);
  if (read.text("format") != kFormatName) read.fail("it is of another format");
  if (const auto version = read.integer("version"); version < 1 || version > kFormatVersion) {
    throw CheckpointError(
        fmt::format("'{}' is of format version {}, this build reads versions 1 to {}; use the zerotorch that wrote it",
                    where, version, kFormatVersion));
  }
  if (static_cast<std::uint64_t>(read.integer("block_nbytes")) != kBlockNbytes) {
    read.fail("blocks have 1 MiB");
  }
  Manifest manifest;
  manifest.id = read.text("id");
  manifest.tag = read.text("tag");
  manifest.created_unix_ns = read.integer("created_unix_ns");
  manifest.global_steps = read.integer("global_steps");
  manifest.world_size = static_cast<int>(read.integer("world_size", 1 << 30));
  manifest.versions = read.at("versions").dump();
  manifest.state = read.at("state").dump();
  manifest.client_state = read.at("client_state").dump();
  manifest.config = read.at("config").dump();
  std::set<std::string> names;
  for (const Json& file : read.array("files")) {
    manifest.files.push_back(parse_file(file, where));
    if (!names.insert(manifest.files.back().name).second) {
      read.fail(fmt::format("the file '{}' is listed twice", manifest.files.back().name));
    }
  }
  names.clear();
  for (const Json& item : read.array("tensors")) {
    const Reader tensor_reader(item, where);
    ManifestTensor tensor{parse_info(tensor_reader), {}};
    if (!names.insert(tensor.info.key()).second) {
      read.fail(fmt::format("the tensor '{}' is listed twice", tensor.info.key()));
    }
    for (const Json& piece : tensor_reader.array("pieces")) {
      tensor.pieces.push_back(parse_place(piece, element_nbytes(tensor.info.dtype), where));
    }
    check_pieces(tensor, manifest.files, read);
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

Manifest read_manifest(io::FileSystem& files, const std::string& folder) {
  return parse_manifest(manifest_text(files, folder), io::join(folder, kManifestName));
}

bool has_intact_manifest(io::FileSystem& files, const std::string& folder) {
  return problem_with_checksum(manifest_text(files, folder)).empty();
}

std::string to_text(const RankPart& part) {
  Json places = Json::array();
  for (const auto& item : part.places) {
    Json place = to_json(item.place);
    place["tensor"] = item.tensor;
    places.push_back(std::move(place));
  }
  return Json{{"file", to_json(part.file)}, {"places", std::move(places)}}.dump();
}

RankPart parse_rank_part(std::string_view text, const std::string& where) {
  const Json json = parse_json(text);
  const Reader read(json, where);
  RankPart part;
  part.file = parse_file(read.at("file"), where);
  for (const Json& item : read.array("places")) {
    const Reader place_reader(item, where);
    RankPart::Place place;
    place.tensor = static_cast<std::size_t>(place_reader.integer("tensor"));
    // The element's size is not known here; the merged manifest is checked as a whole.
    place.place.offset = static_cast<std::uint64_t>(place_reader.integer("offset"));
    place.place.begin = place_reader.integer("begin");
    place.place.numel = place_reader.integer("numel");
    for (const Json& sum : place_reader.array("checksums")) {
      place.place.checksums.push_back(place_reader.checksum_from(sum));
    }
    part.places.push_back(std::move(place));
  }
  return part;
}

}  // namespace zero::checkpoint
