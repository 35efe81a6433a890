#include "checkpoint/tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/folder.h"
#include "checkpoint/range_reader.h"
#include "zero/errors.h"

namespace zero::checkpoint {
namespace {

Summary summarise(const Found& found, const std::optional<std::string>& latest) {
  Summary summary;
  summary.tag = found.tag;
  summary.folder = found.folder;
  summary.complete = true;
  summary.latest = found.tag == latest;
  summary.created_unix_ns = found.manifest.created_unix_ns;
  summary.global_steps = found.manifest.global_steps;
  summary.world_size = found.manifest.world_size;
  summary.files = static_cast<int>(found.manifest.files.size());
  summary.nbytes = found.manifest.nbytes();
  for (const auto& tensor : found.manifest.tensors) {
    if (tensor.info.kind == kinds::kWeight) summary.parameters += tensor.info.numel();
  }
  return summary;
}

/// The checkpoint's own folder, whatever its state; where only a complete one can be told apart, that.
std::string folder_to_verify(io::FileSystem& files, const std::string& path) {
  if (files.kind(io::join(path, kManifestName)) == io::FileKind::kFile) return path;
  if (files.kind(path) == io::FileKind::kFolder) {
    if (const auto latest = latest_tag(files, path)) {
      const std::string folder = io::join(path, *latest);
      if (files.kind(io::join(folder, kManifestName)) == io::FileKind::kFile) return folder;
    }
  }
  return find_checkpoint(files, path).folder;
}

/// Takes the newest intact checkpoint out of `removable` where all the others are damaged.
void keep_an_intact_one(io::FileSystem& files, const Listing& listing, std::vector<std::string>& removable,
                        std::vector<std::string>& damaged) {
  if (removable.empty()) return;
  const auto stays = [&](const Found& found) {
    return std::find(removable.begin(), removable.end(), found.tag) == removable.end();
  };
  for (const bool staying : {true, false}) {
    for (auto found = listing.complete.rbegin(); found != listing.complete.rend(); ++found) {
      if (stays(*found) != staying) continue;
      if (!verify(files, found->folder, {}).problems.empty()) {
        if (staying) damaged.push_back(found->tag);
        continue;
      }
      if (!staying) std::erase(removable, found->tag);
      return;
    }
  }
}

}  // namespace

std::vector<Summary> list(io::FileSystem& files, const std::string& folder) {
  if (files.kind(folder) != io::FileKind::kFolder) {
    throw CheckpointError(fmt::format("there is no folder '{}'", folder));
  }
  const auto latest = latest_tag(files, folder);
  const Listing listing = list_checkpoints(files, folder);
  std::vector<Summary> summaries;
  for (const auto& item : listing.incomplete) {
    Summary summary;
    summary.tag = item.tag;
    summary.folder = io::join(folder, item.tag);
    summary.problem = item.problem;
    summary.latest = item.tag == latest;
    summaries.push_back(std::move(summary));
  }
  for (const auto& found : listing.complete) summaries.push_back(summarise(found, latest));
  return summaries;
}

Description inspect(io::FileSystem& files, const std::string& path) {
  const Found found = find_checkpoint(files, path);
  Description description;
  description.summary = summarise(found, latest_tag(files, io::parent_of(found.folder)));
  for (const auto& tensor : found.manifest.tensors) {
    const auto numel = tensor.info.numel();
    description.tensors.push_back({tensor.info.name, tensor.info.kind,
                                   std::string(element_type_name(tensor.info.dtype)), tensor.info.shape, numel,
                                   static_cast<std::uint64_t>(numel) * element_nbytes(tensor.info.dtype),
                                   static_cast<int>(tensor.pieces.size())});
  }
  description.state = found.manifest.state;
  description.client_state = found.manifest.client_state;
  description.config = found.manifest.config;
  description.versions = found.manifest.versions;
  return description;
}

VerifyReport verify(io::FileSystem& files, const std::string& path, const Progress& progress) {
  VerifyReport report;
  report.folder = folder_to_verify(files, path);
  if (!has_intact_manifest(files, report.folder)) {
    const std::string manifest = io::join(report.folder, kManifestName);
    report.problems.push_back({manifest, fmt::format("'{}' is not what was written", manifest)});
    return report;
  }
  const Found found = find_checkpoint(files, report.folder);
  RangeReader reader(files, found);
  report.problems = reader.verify(progress);
  report.nbytes = reader.nbytes_read();
  return report;
}

PruneReport prune(io::FileSystem& files, const std::string& folder, int keep_last, bool dry_run) {
  if (keep_last < 1) throw CheckpointError("prune keeps at least one checkpoint; remove the folder to remove all");
  if (files.kind(folder) != io::FileKind::kFolder) {
    throw CheckpointError(fmt::format("there is no folder '{}'", folder));
  }
  PruneReport report;
  // Nothing of ours, not even a lock.
  if (possible_tags(files, folder).empty() && leftovers(files, folder).empty()) return report;
  const auto lock = lock_folder(files, folder);
  const Listing listing = list_checkpoints(files, folder);
  auto removable = prunable(listing, latest_tag(files, folder), keep_last);
  keep_an_intact_one(files, listing, removable, report.damaged);
  for (const auto& tag : removable) {
    for (const auto& found : listing.complete) {
      if (found.tag == tag) report.nbytes += found.manifest.nbytes();
    }
    report.removed.push_back(tag);
  }
  for (const auto& item : listing.incomplete) report.incomplete.push_back(item.tag);
  report.leftovers = leftovers(files, folder);
  if (dry_run) return report;
  for (const auto& tag : report.removed) remove_checkpoint(files, folder, tag);
  for (const auto& name : report.leftovers) io::remove_all(files, io::join(folder, name));
  return report;
}

// ---- on the machine's files ----------------------------------------------------------------------------

std::vector<Summary> list(const std::string& folder) { return list(io::system_files(), folder); }
std::string latest(const std::string& folder) { return latest_tag(io::system_files(), folder).value_or(""); }
Description inspect(const std::string& path) { return inspect(io::system_files(), path); }
VerifyReport verify(const std::string& path, const Progress& progress) {
  return verify(io::system_files(), path, progress);
}
ExportReport export_weights(const std::string& path, const std::string& to, const ExportOptions& options,
                            const Progress& progress) {
  return export_weights(io::system_files(), path, to, options, progress);
}
DiffReport diff(const std::string& a, const std::string& b, const Progress& progress) {
  return diff(io::system_files(), a, b, progress);
}
PruneReport prune(const std::string& folder, int keep_last, bool dry_run) {
  return prune(io::system_files(), folder, keep_last, dry_run);
}

}  // namespace zero::checkpoint
