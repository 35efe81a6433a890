#pragma once
// A folder of checkpoints: what its names mean.
//
//   <tag>/              a complete checkpoint: manifest.json and one file per rank
//   latest              the tag that a load without a tag takes
//   .saving-<id>/       a save under way, or what an interrupted one left
//   .removing-<id>/     a checkpoint that is being removed
//   .lock               held while somebody saves or prunes
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "io/file_system.h"

namespace zero::checkpoint {

/// Throws CheckpointError for a tag that cannot be a folder's name here.
void check_tag(const std::string& tag);
std::string rank_file_name(int rank);
std::string saving_folder_name(const std::string& id);
/// 32 hexadecimal digits, new at every call.
std::string make_id();

/// Names of folders that may be checkpoints, sorted. Empty when there is no such folder.
std::vector<std::string> possible_tags(io::FileSystem& files, const std::string& folder);
/// What `latest` says; empty when there is no such file or it is not a tag.
std::optional<std::string> latest_tag(io::FileSystem& files, const std::string& folder);

struct Found {
  std::string tag;
  std::string folder;  ///< the checkpoint's own
  Manifest manifest;
};
struct Incomplete {
  std::string tag;
  std::string problem;
};
struct Listing {
  std::vector<Found> complete;  ///< oldest first
  std::vector<Incomplete> incomplete;
};
/// Reads all manifests and the sizes of the files they name.
Listing list_checkpoints(io::FileSystem& files, const std::string& folder);

/// Throws CheckpointError unless every file that the manifest names is there with its size.
void check_complete(io::FileSystem& files, const std::string& folder, const Manifest& manifest);
/// The manifest of a checkpoint that is complete in that sense. Throws CheckpointError.
Manifest read_complete_manifest(io::FileSystem& files, const std::string& folder);

/// What a load of `tag` in `folder` takes; an empty tag: what `latest` names, or without it the newest
/// complete one. Throws CheckpointError saying what is there instead.
Found find_checkpoint(io::FileSystem& files, const std::string& folder, const std::string& tag);
/// `path` as people give it to tools: a checkpoint's own folder, or a folder of checkpoints.
Found find_checkpoint(io::FileSystem& files, const std::string& path);

/// Names of what interrupted saves and removals left. Only meaningful while the lock is held.
std::vector<std::string> leftovers(io::FileSystem& files, const std::string& folder);
/// Throws CheckpointError when somebody else saves or prunes there.
std::unique_ptr<io::Lock> lock_folder(io::FileSystem& files, const std::string& folder);
/// Invisible at once, then file by file.
void remove_checkpoint(io::FileSystem& files, const std::string& folder, const std::string& tag);
/// Which complete checkpoints a pruning to `keep_last` removes: all but the newest and the latest.
std::vector<std::string> prunable(const Listing& listing, const std::optional<std::string>& latest, int keep_last);

}  // namespace zero::checkpoint
