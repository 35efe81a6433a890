#include "checkpoint/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

constexpr std::string_view kSaving = ".saving-";
constexpr std::string_view kRemoving = ".removing-";
constexpr std::string_view kLock = ".lock";
constexpr std::string_view kRankFile = "rank_";
constexpr std::size_t kMaxTagLength = 200;
constexpr std::size_t kMaxNamed = 5;  ///< tags in an error's text

std::string problem_with(std::string_view tag) {
  if (tag.empty()) return "it is empty";
  if (tag.size() > kMaxTagLength) return fmt::format("it is longer than {} characters", kMaxTagLength);
  if (tag[0] == '.') return "it begins with a dot";
  if (tag == kLatestName) return "the file of that name says which checkpoint is the latest";
  for (const char c : tag) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return "it has a slash or a control character";
    }
  }
  return {};
}

std::string describe(const std::vector<std::string>& tags) {
  if (tags.empty()) return "there is none";
  const std::size_t named = std::min(tags.size(), kMaxNamed);
  return fmt::format("there are {}{}", fmt::join(tags.end() - static_cast<std::ptrdiff_t>(named), tags.end(), ", "),
                     tags.size() > named ? fmt::format(" and {} more", tags.size() - named) : "");
}

}  // namespace

void check_tag(const std::string& tag) {
  if (const std::string problem = problem_with(tag); !problem.empty()) {
    throw CheckpointError(fmt::format("'{}' cannot be a checkpoint's tag: {}", tag, problem));
  }
}

std::string rank_file_name(int rank) { return fmt::format("{}{:05}.safetensors", kRankFile, rank); }
std::string saving_folder_name(const std::string& id) { return std::string(kSaving) + id; }

std::string make_id() {
  std::random_device random;
  const auto word = [&random] { return static_cast<std::uint64_t>(random()) << 32 | random(); };
  return to_hex(word()) + to_hex(word());
}

namespace {

/// Some file of a checkpoint is there, or it cannot be seen; other folders are no business of ours.
bool looks_like_checkpoint(io::FileSystem& files, const std::string& folder) {
  try {
    return std::ranges::any_of(files.list(folder), [](const std::string& name) {
      return name == kManifestName || name.starts_with(kRankFile);
    });
  } catch (const IoError&) {
    return true;  // whoever reads it says why
  }
}

}  // namespace

std::vector<std::string> possible_tags(io::FileSystem& files, const std::string& folder) {
  std::vector<std::string> tags;
  if (files.kind(folder) != io::FileKind::kFolder) return tags;
  for (auto& name : files.list(folder)) {
    const std::string path = io::join(folder, name);
    if (problem_with(name).empty() && files.kind(path) == io::FileKind::kFolder && looks_like_checkpoint(files, path)) {
      tags.push_back(std::move(name));
    }
  }
  return tags;
}

std::optional<std::string> latest_tag(io::FileSystem& files, const std::string& folder) {
  const std::string path = io::join(folder, kLatestName);
  if (files.kind(path) != io::FileKind::kFile) return std::nullopt;
  std::string tag = io::read_text(files, path, 4096);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
  if (!problem_with(tag).empty()) return std::nullopt;
  return tag;
}

void check_complete(io::FileSystem& files, const std::string& folder, const Manifest& manifest) {
  for (const auto& file : manifest.files) {
    const std::string path = io::join(folder, file.name);
    if (files.kind(path) != io::FileKind::kFile) {
      throw CheckpointError(fmt::format("the checkpoint '{}' lacks its file '{}'", folder, file.name));
    }
    if (const std::uint64_t nbytes = files.open(path)->size(); nbytes != file.nbytes) {
      throw CheckpointError(fmt::format("'{}' has {} bytes, the manifest says {}: it was cut off or replaced", path,
                                        nbytes, file.nbytes));
    }
  }
}

Manifest read_complete_manifest(io::FileSystem& files, const std::string& folder) {
  Manifest manifest = read_manifest(files, folder);
  check_complete(files, folder, manifest);
  return manifest;
}

Listing list_checkpoints(io::FileSystem& files, const std::string& folder) {
  Listing listing;
  for (const auto& tag : possible_tags(files, folder)) {
    const std::string path = io::join(folder, tag);
    try {
      listing.complete.push_back({tag, path, read_complete_manifest(files, path)});
    } catch (const Error& error) {
      listing.incomplete.push_back({tag, error.what()});
    }
  }
  std::stable_sort(listing.complete.begin(), listing.complete.end(), [](const Found& a, const Found& b) {
    return a.manifest.created_unix_ns < b.manifest.created_unix_ns;
  });
  return listing;
}

Found find_checkpoint(io::FileSystem& files, const std::string& folder, const std::string& tag) {
  if (!tag.empty()) {
    check_tag(tag);
    const std::string path = io::join(folder, tag);
    if (files.kind(path) != io::FileKind::kFolder) {
      throw CheckpointError(
          fmt::format("there is no checkpoint '{}' in '{}'; {}", tag, folder, describe(possible_tags(files, folder))));
    }
    return {tag, path, read_complete_manifest(files, path)};
  }
  if (files.kind(folder) == io::FileKind::kFile) {
    throw CheckpointError(
        fmt::format("'{}' is a file, no folder of checkpoints; the weights of a whole model (safetensors, "
                    "torch.save) are read by Engine::load_full_weights",
                    folder));
  }
  if (files.kind(folder) != io::FileKind::kFolder) {
    throw CheckpointError(fmt::format("there is no folder '{}' to load a checkpoint from", folder));
  }
  if (const auto latest = latest_tag(files, folder)) {
    const std::string path = io::join(folder, *latest);
    if (files.kind(path) == io::FileKind::kFolder) return {*latest, path, read_complete_manifest(files, path)};
    throw CheckpointError(fmt::format(
        "'{}' says that '{}' is the latest checkpoint, which is not there; {}. Bring it back, or give the tag to load",
        io::join(folder, kLatestName), *latest, describe(possible_tags(files, folder))));
  }
  Listing listing = list_checkpoints(files, folder);
  if (!listing.complete.empty()) return std::move(listing.complete.back());
  std::string why = "there is none";
  if (!listing.incomplete.empty()) why = listing.incomplete.back().problem;
  throw CheckpointError(fmt::format("'{}' holds no complete checkpoint: {}", folder, why));
}

Found find_checkpoint(io::FileSystem& files, const std::string& path) {
  if (files.kind(io::join(path, kManifestName)) != io::FileKind::kFile) return find_checkpoint(files, path, "");
  Manifest manifest = read_manifest(files, path);
  std::string tag = manifest.tag;
  return {std::move(tag), path, std::move(manifest)};
}

std::vector<std::string> leftovers(io::FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  for (auto& name : files.list(folder)) {
    if (name.starts_with(kSaving) || name.starts_with(kRemoving)) names.push_back(std::move(name));
  }
  return names;
}

std::unique_ptr<io::Lock> lock_folder(io::FileSystem& files, const std::string& folder) {
  auto lock = files.try_lock(io::join(folder, kLock));
  if (!lock) {
    throw CheckpointError(
        fmt::format("somebody else saves or prunes in '{}' at the moment (its file '{}' is locked); give every run a "
                    "folder of its own",
                    folder, kLock));
  }
  return lock;
}

void remove_checkpoint(io::FileSystem& files, const std::string& folder, const std::string& tag) {
  const std::string hidden = io::join(folder, std::string(kRemoving) + make_id());
  files.rename(io::join(folder, tag), hidden);
  files.sync_folder(folder);  // gone as a whole before the first file goes
  io::remove_all(files, hidden);
}

std::vector<std::string> prunable(const Listing& listing, const std::optional<std::string>& latest, int keep_last) {
  std::vector<std::string> tags;
  if (keep_last <= 0) return tags;
  const std::size_t kept = static_cast<std::size_t>(keep_last);
  for (std::size_t i = 0; i + kept < listing.complete.size(); ++i) {
    if (listing.complete[i].tag != latest) tags.push_back(listing.complete[i].tag);
  }
  return tags;
}

}  // namespace zero::checkpoint
