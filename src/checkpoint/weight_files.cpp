#include "checkpoint/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "checkpoint/json_text.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

constexpr std::uint64_t kMaxIndexNbytes = 256 << 20;
constexpr std::size_t kReadNbytes = 64 << 20;  ///< most that is asked for in one request
constexpr std::string_view kFileEnd = ".safetensors";
constexpr std::string_view kIndexEnd = ".safetensors.index.json";

/// Tensor name to file name, as an index file has it.
std::map<std::string, std::string> read_weight_map(io::FileSystem& files, const std::string& path) {
  const auto index = parse_json(io::read_text(files, path, kMaxIndexNbytes));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw CheckpointError(fmt::format("'{}' is no index of safetensors files: it has no \"weight_map\"", path));
  }
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    if (text.empty() || text == ".." || text == "." || text.find('/') != std::string::npos) {
      throw CheckpointError(fmt::format("'{}': tensor '{}' lies in {}, want the name of a file beside the index", path,
                                        name, file.dump()));
    }
    map[name] = text;
  }
  return map;
}

}  // namespace

bool WeightFiles::recognises(io::FileSystem& files, const std::string& path) {
  return path.ends_with(kFileEnd) || path.ends_with(kIndexEnd) || files.kind(path) == io::FileKind::kFolder;
}

WeightFiles::WeightFiles(io::FileSystem& files, const std::string& path) {
  if (files.kind(path) != io::FileKind::kFolder) {
    path.ends_with(kIndexEnd) ? open_indexed(files, path) : open_part(files, path);
    return;
  }
  const std::string single = io::join(path, "model.safetensors"), index = single + ".index.json";
  if (files.kind(index) == io::FileKind::kFile) {
    open_indexed(files, index);
  } else if (files.kind(single) == io::FileKind::kFile) {
    open_part(files, single);
  } else {
    throw CheckpointError(
        fmt::format("the folder '{}' has neither model.safetensors nor model.safetensors.index.json; a checkpoint of "
                    "training is loaded with Engine::load_checkpoint",
                    path));
  }
}

void WeightFiles::open_part(io::FileSystem& files, const std::string& path) {
  auto file = files.open(path);
  auto header = read_safetensors_header(*file, path);
  for (auto& entry : header.entries) {
    entries_.push_back(std::move(entry));
    part_of_.push_back(parts_.size());
  }
  parts_.push_back({path, std::move(file), header.data_begin});
}

void WeightFiles::open_indexed(io::FileSystem& files, const std::string& path) {
  const auto file_of = read_weight_map(files, path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  for (const auto& name : names) open_part(files, io::join(io::parent_of(path), name));
  std::set<std::string> there;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::string& part = parts_[part_of_[i]].path;
    const auto found = file_of.find(entries_[i].name);
    if (found != file_of.end() && io::join(io::parent_of(path), found->second) == part) {
      there.insert(entries_[i].name);
      continue;
    }
    throw CheckpointError(fmt::format("'{}' holds the tensor '{}', which the index '{}' does not have there", part,
                                      entries_[i].name, path));
  }
  for (const auto& [tensor, file] : file_of) {
    if (!there.contains(tensor)) {
      throw CheckpointError(
          fmt::format("the index '{}' has the tensor '{}' in '{}', which does not hold it", path, tensor, file));
    }
  }
}

void WeightFiles::read(std::size_t entry, std::span<std::byte> data) {
  ZERO_CHECK(data.size() == nbytes(entry), "{} bytes for a tensor of {}", data.size(), nbytes(entry));
  Part& part = parts_[part_of_[entry]];
  const std::uint64_t begin = part.data_begin + entries_[entry].begin;
  for (std::size_t done = 0; done < data.size(); done += kReadNbytes) {
    part.file->read(begin + done, data.subspan(done, std::min(kReadNbytes, data.size() - done)));
  }
  part.file->drain();
}

}  // namespace zero::checkpoint
