#include "checkpoint/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/folder.h"
#include "io/io_error.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::checkpoint {
namespace {

using namespace std::chrono_literals;

/// How long rank 0 waits for another rank's note in an asynchronous save.
constexpr double kAwaitSeconds = 3600;

std::string note_name(int rank) { return fmt::format("rank_{:05}.part", rank); }
std::string failure_name(int rank) { return fmt::format("rank_{:05}.failed", rank); }

std::int64_t unix_ns_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// A folder that no power cut takes away again, with what is in it.
void make_durable_folder(io::FileSystem& files, const std::string& folder) {
  const bool is_new = files.kind(folder) == io::FileKind::kNone;
  files.make_folders(folder);
  // Somebody else may have made it and not come so far; but then a parent we may not read is no reason to
  // stop.
  const std::string error = error_of([&] { files.sync_folder(io::parent_of(folder)); });
  if (is_new && !error.empty()) throw IoError(error);
}

}  // namespace

struct Checkpointer::Job {
  std::string folder, tag, id;
  std::string saving;  ///< the hidden folder
  Contents contents;
  SaveOptions options;
  IsOthers is_others;
  std::unique_ptr<RankFile> file;
  std::byte* ring = nullptr;
  std::unique_ptr<io::Lock> lock;  ///< rank 0
  RankPart part;
  double begin_seconds = 0;
  bool committed = false;  ///< from just before the rename on: the hidden folder is no longer ours to remove

  void write_part(io::FileSystem& files) { part = file->write(files, saving, ring); }
  void commit(io::FileSystem& files, int world_size, const std::vector<RankPart>& parts);
  void prune(io::FileSystem& files);
  void give_up(io::FileSystem& files);
  Manifest make_manifest(int world_size, const std::vector<RankPart>& parts) const;
};

Manifest Checkpointer::Job::make_manifest(int world_size, const std::vector<RankPart>& parts) const {
  Manifest manifest;
  manifest.id = id;
  manifest.tag = tag;
  manifest.created_unix_ns = unix_ns_now();
  manifest.global_steps = contents.global_steps;
  manifest.world_size = world_size;
  manifest.versions = contents.versions;
  manifest.state = contents.state;
  manifest.client_state = contents.client_state;
  manifest.config = contents.config;
  for (const auto& info : contents.tensors) manifest.tensors.push_back({info, {}});
  for (const auto& rank_part : parts) {
    const int file_index = static_cast<int>(manifest.files.size());
    manifest.files.push_back(rank_part.file);
    for (const auto& [tensor, place] : rank_part.places) {
      manifest.tensors.at(tensor).pieces.push_back(place);
      manifest.tensors[tensor].pieces.back().file = file_index;
    }
  }
  for (auto& tensor : manifest.tensors) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const PiecePlace& a, const PiecePlace& b) { return a.begin < b.begin; });
  }
  return manifest;
}

void Checkpointer::Job::commit(io::FileSystem& files, int world_size, const std::vector<RankPart>& parts) {
  const std::string text = to_text(make_manifest(world_size, parts));
  // What cannot be read must not be committed: gaps and overlaps between ranks show here.
  const Manifest manifest = parse_manifest(text, io::join(saving, kManifestName));
  io::write_text(files, io::join(saving, kManifestName), text);
  files.sync_folder(saving);
  const std::string target = io::join(folder, tag);
  committed = true;
  if (files.kind(target) == io::FileKind::kNone) {
    files.rename(saving, target);
  } else {
    files.exchange(saving, target);  // the old checkpoint of that tag is in the hidden folder now
  }
  files.sync_folder(folder);
  if (options.save_latest) {
    const std::string error = error_of([&] { io::replace_text(files, io::join(folder, kLatestName), tag + "\n"); });
    if (!error.empty()) {
      throw IoError(
          fmt::format("the checkpoint is complete, but '{}' still names the one before: {}", kLatestName, error));
    }
  }
  // A failed removal of old ones is no failed save.
  const std::string error = error_of([&] {
    if (files.kind(saving) != io::FileKind::kNone) io::remove_all(files, saving);
    prune(files);
  });
  if (!error.empty()) {
    base::log_warning("checkpoint '{}' is saved, but older ones were not removed: {}", tag, error);
  }
}

/// After a failure: what is left of the save goes, as far as that can be done.
void Checkpointer::Job::give_up(io::FileSystem& files) {
  if (!committed) error_of([&] { io::remove_all(files, saving); });
}

void Checkpointer::Job::prune(io::FileSystem& files) {
  if (options.keep_last <= 0) return;
  read_complete_manifest(files, io::join(folder, tag));  // as found on the disk, not as we remember it
  Listing listing = list_checkpoints(files, folder);
  if (is_others) std::erase_if(listing.complete, [this](const Found& found) { return is_others(folder, found.tag); });
  for (const auto& old : prunable(listing, latest_tag(files, folder), options.keep_last)) {
    if (old != tag) remove_checkpoint(files, folder, old);
  }
}

Checkpointer::Checkpointer(io::FileSystem& files, Group group, StagingMemory staging, FreeMemory free_memory)
    : files_(files), group_(std::move(group)), staging_(std::move(staging)), free_memory_(std::move(free_memory)) {}

Checkpointer::~Checkpointer() {
  // The other ranks' engines end as well, after writing their parts.
  constexpr double kPatienceSeconds = 60;
  const bool orderly = std::uncaught_exceptions() == 0 && !group_.failed();
  give_up_at_ = base::seconds_now() + (orderly ? kPatienceSeconds : 0);
  join();
  if (!error_.empty()) base::log_error("{} failed: {}", what_, error_);
}

void Checkpointer::join() {
  if (thread_.joinable()) thread_.join();
}

/// Rank 0: locks the folder, removes what earlier saves left, makes the hidden folder.
void Checkpointer::make_saving_folder(Job& job) {
  check_tag(job.tag);
  make_durable_folder(files_, job.folder);
  const std::string target = io::join(job.folder, job.tag);
  if (files_.kind(target) != io::FileKind::kNone &&
      files_.kind(io::join(target, kManifestName)) != io::FileKind::kFile) {
    throw IoError(fmt::format("'{}' is there and is no checkpoint; choose another tag or move it away", target));
  }
  job.lock = lock_folder(files_, job.folder);
  for (const auto& name : leftovers(files_, job.folder)) io::remove_all(files_, io::join(job.folder, name));
  job.id = make_id();
  job.saving = io::join(job.folder, saving_folder_name(job.id));
  files_.make_folders(job.saving);
}

/// All ranks learn the hidden folder's name from rank 0, and throw unless they save the same checkpoint. *Collective.*
/// Returns this rank's error.
std::string Checkpointer::share_saving_folder(Job& job) {
  /// Of rank 0, for all.
  struct Start {
    std::array<char, 32> id;
    Checksum asked;
  } start{};
  const Checksum asked = checksum_of(job.folder + '\n' + job.tag);
  if (group_.rank() == 0) {
    std::copy(job.id.begin(), job.id.end(), start.id.begin());
    start.asked = asked;
  }
  if (group_.size() > 1) {
    group_.broadcast(&start, sizeof start, DType::kByte, 0, {.label = "checkpoint"}).wait();
  }
  job.id.assign(start.id.begin(), start.id.end());
  job.saving = io::join(job.folder, saving_folder_name(job.id));
  if (start.asked == asked) return {};
  return fmt::format("this rank was asked to save '{}' in '{}', rank 0 something else", job.tag, job.folder);
}

/// Saves in the foreground where a host has no memory for its ranks' staging. *Collective.* Returns the bytes of all
/// ranks' files.
std::uint64_t Checkpointer::choose_foreground(Job& job) {
  if (job.options.async && !job.contents.only_streamed.empty()) {
    job.options.async = false;
    if (group_.rank() == 0) base::log_info("{} in the foreground: {}", what_, job.contents.only_streamed);
  }
  std::int64_t sums[] = {static_cast<std::int64_t>(job.file ? job.file->nbytes() : 0), 0};
  auto& [total, without_room] = sums;
  if (job.options.async && job.file && !has_room_for(job.file->payload_nbytes())) without_room = 1;
  if (group_.size() > 1) group_.all_reduce(sums, 2, DType::kInt64, ReduceOp::kSum, {.label = "checkpoint"}).wait();
  if (without_room > 0) {
    job.options.async = false;
    if (group_.rank() == 0) {
      base::log_warning(
          "{} in the foreground: a copy of each rank's shard, {} and {} ranks on this host, does not "
          "fit the {} of memory that are free",
          what_, human_nbytes(job.file ? job.file->payload_nbytes() : 0), group_.local_size(),
          human_nbytes(free_memory_()));
    }
  }
  return static_cast<std::uint64_t>(total);
}

/// Rank 0: whether the disk has room for `total` bytes of files.
void Checkpointer::check_free_space(const Job& job, std::uint64_t total) {
  const std::uint64_t free = files_.free_nbytes(job.folder);
  const std::uint64_t wanted = total + total / 500 + (1 << 20);  // manifest, notes and the file system's own blocks
  if (free >= wanted) return;
  throw IoError(
      fmt::format("'{}' has {} free, the checkpoint needs {}; remove old checkpoints (zero ckpt "
                  "prune, zerotorch.checkpoint.keep_last) or choose another folder",
                  job.folder, human_nbytes(free), human_nbytes(wanted)));
}

/// Rank 0 makes the hidden folder; all ranks learn its name and how much is written. *Collective.*
void Checkpointer::begin(Job& job) {
  const bool first = group_.rank() == 0;
  std::string error;
  if (first) error = error_of([&] { make_saving_folder(job); });
  agree(what_, error, group_);
  error = share_saving_folder(job);
  if (error.empty()) {
    error = error_of([&] {
      job.file =
          std::make_unique<RankFile>(group_.rank(), job.id, job.contents.tensors, std::move(job.contents.pieces));
    });
  }
  const std::uint64_t total = choose_foreground(job);
  if (first && error.empty()) error = error_of([&] { check_free_space(job, total); });
  if (error.empty()) {
    error = error_of(
        [&] { job.ring = staging_(job.options.async ? job.file->payload_nbytes() : RankFile::ring_nbytes()); });
  }
  try {
    agree(what_, error, group_);
  } catch (...) {
    if (first) job.give_up(files_);
    throw;
  }
}

bool Checkpointer::has_room_for(std::size_t nbytes) const {
  if (nbytes <= staged_nbytes_) return true;  // the memory of an earlier save
  constexpr double kFilled = 0.95;            // of what is free
  const double more = static_cast<double>(nbytes - staged_nbytes_) * group_.local_size();
  return more <= kFilled * static_cast<double>(free_memory_());
}

void Checkpointer::save(const std::string& folder, const std::string& tag, Contents contents,
                        const SaveOptions& options) {
  if (options.refuse_when_busy) {
    std::int64_t busy = busy_ ? 1 : 0;
    if (group_.size() > 1) group_.all_reduce(&busy, 1, DType::kInt64, ReduceOp::kMax, {.label = "checkpoint"}).wait();
    if (busy) throw CheckpointError(fmt::format("{} is still under way, and refuse_when_busy is set", what_));
  }
  wait();
  what_ = fmt::format("saving the checkpoint '{}' in '{}'", tag, folder);
  auto job = std::make_unique<Job>();
  job->begin_seconds = base::seconds_now();
  job->folder = folder;
  job->tag = tag;
  job->contents = std::move(contents);
  job->options = options;
  job->is_others = is_others_;
  begin(*job);
  if (job->options.async) {
    job->file->stage(job->ring);
    staged_nbytes_ = std::max(staged_nbytes_, job->file->payload_nbytes());
    statistics_.stall_seconds = base::seconds_now() - job->begin_seconds;
    busy_ = true;
    unreported_ = true;
    give_up_at_ = std::numeric_limits<double>::infinity();
    thread_ = std::thread([this, job = std::move(job)] {
      error_ = error_of([&] { run(*job); });
      if (!error_.empty()) base::log_error("{} failed: {}", what_, error_);
      job->lock.reset();
      busy_ = false;
    });
    return;
  }
  std::string error = error_of([&] {
    job->write_part(files_);
    if (group_.rank() != 0) io::write_text(files_, io::join(job->saving, note_name(group_.rank())), to_text(job->part));
  });
  try {
    agree(what_, error, group_);
    if (group_.rank() == 0) {
      error = error_of([&] {
        std::vector<RankPart> parts{job->part};
        for (int rank = 1; rank < group_.size(); ++rank) parts.push_back(await_part(*job, rank));
        job->commit(files_, group_.size(), parts);
      });
    }
    agree(what_, error, group_);
  } catch (const CheckpointError&) {
    if (group_.rank() == 0) job->give_up(files_);
    throw;
  }
  statistics_.nbytes = job->file->nbytes();
  statistics_.total_seconds = statistics_.stall_seconds = base::seconds_now() - job->begin_seconds;
}

/// The thread of an asynchronous save.
void Checkpointer::run(Job& job) {
  const int rank = group_.rank();
  const std::string error = error_of([&] {
    job.write_part(files_);
    if (rank != 0) io::replace_text(files_, io::join(job.saving, note_name(rank)), to_text(job.part));
  });
  statistics_.nbytes = job.file->nbytes();
  if (rank != 0) {
    if (!error.empty()) {
      say_failure(job, rank, error);
      throw IoError(error);
    }
    statistics_.total_seconds = base::seconds_now() - job.begin_seconds;
    return;
  }
  std::vector<RankPart> parts{job.part};
  std::string failures = error;
  for (int other = 1; other < group_.size(); ++other) {
    // Also after a failure: the folder is removed when nobody writes there any more.
    const std::string failure = error_of([&] { parts.push_back(await_part(job, other)); });
    if (!failure.empty()) failures += fmt::format("{}{}", failures.empty() ? "" : "; ", failure);
  }
  if (failures.empty()) failures = error_of([&] { job.commit(files_, group_.size(), parts); });
  if (!failures.empty()) {
    job.give_up(files_);
    throw IoError(failures);
  }
  statistics_.total_seconds = base::seconds_now() - job.begin_seconds;
}

/// To rank 0, which waits for this rank's note. The disk may be full: then a name without words has to do.
void Checkpointer::say_failure(const Job& job, int rank, const std::string& error) const {
  const std::string failure = io::join(job.saving, failure_name(rank));
  if (error_of([&] { io::replace_text(files_, failure, error); }).empty()) return;
  error_of([&] { files_.create(failure)->close(); });
}

/// Rank 0: another rank's note, which is removed. Polls, as the file system is the only way between threads
/// of different ranks here.
RankPart Checkpointer::await_part(const Job& job, int rank) const {
  const std::string note = io::join(job.saving, note_name(rank));
  const std::string failure = io::join(job.saving, failure_name(rank));
  const double until = base::seconds_now() + kAwaitSeconds;
  for (auto pause = 1ms;; pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
    if (files_.kind(note) == io::FileKind::kFile) {
      RankPart part = parse_rank_part(io::read_text(files_, note, std::uint64_t{1} << 32), note);
      files_.remove(note);
      return part;
    }
    if (files_.kind(failure) == io::FileKind::kFile) {
      const std::string words = io::read_text(files_, failure, 1 << 20);
      throw IoError(fmt::format("rank {}: {}", rank, words.empty() ? "failed, and could not write down why" : words));
    }
    if (base::seconds_now() >= give_up_at_)
      throw IoError(fmt::format("the engine ended before rank {} had written its file", rank));
    if (base::seconds_now() > until) {
      throw IoError(fmt::format("rank {} has not written its file within {:.0f} s", rank, kAwaitSeconds));
    }
    std::this_thread::sleep_for(pause);
  }
}

void Checkpointer::wait() {
  // On every rank alike: save() and wait() are collective, so all have started the same threads.
  if (!unreported_) return;
  join();
  unreported_ = false;
  const std::string error = std::exchange(error_, {});
  agree(what_, error, group_);
}

}  // namespace zero::checkpoint
