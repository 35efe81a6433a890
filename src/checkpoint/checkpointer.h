#pragma once
// Checkpointer: saves checkpoints together with the other ranks of a group.
//
// A save in three parts: rank 0 prepares the hidden folder .saving-<id>; every rank writes and syncs its file
// there, and beside it a note of what lies where; rank 0 turns the notes into the manifest, syncs it, renames
// the folder to the tag, syncs the parent, replaces `latest` and prunes. Whatever stops it before the rename
// leaves the folder's checkpoints as they were.
//
// An asynchronous save does the second and third part in a thread of every rank. Rank 0's waits for the notes
// in the folder, so that the group's collectives stay the caller's.
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/rank_file.h"
#include "comm/memory.h"
#include "zero/checkpoint.h"
#include "zero/group.h"

namespace zero::checkpoint {

/// What is saved. All but `pieces` is the same on every rank; client state and JSON texts are rank 0's.
struct Contents {
  std::vector<TensorInfo> tensors;
  std::vector<Piece> pieces;  ///< this rank's; over all ranks they cover every tensor once
  std::int64_t global_steps = 0;
  std::string versions = "{}", state = "{}", client_state = "{}", config = "{}";
  /// Why the pieces cannot be copied into memory at once, the same on every rank; empty: they can. They then go to the
  /// file one after the other while the program waits.
  std::string only_streamed;
};

struct SaveStatistics {
  std::uint64_t nbytes = 0;  ///< this rank's file
  double stall_seconds = 0;  ///< inside save()
  double total_seconds = 0;  ///< until the checkpoint was committed; of this rank's part on ranks other than 0
};

/// Bytes that can still be had on this host.
using FreeMemory = std::function<std::uint64_t()>;

class Checkpointer {
 public:
  Checkpointer(io::FileSystem& files, Group group, StagingMemory staging,
               FreeMemory free_memory = comm::available_memory_nbytes);
  /// Waits for a save under way, of other ranks' parts for a minute; its error goes to the log. Local.
  ~Checkpointer();

  /// *Collective.* Throws CheckpointError on every rank, naming the ranks that failed and why; the folder's
  /// checkpoints are then as before. An error of an earlier asynchronous save is thrown first, in place of
  /// saving. Asynchronous: returns when the pieces' memory may change; where some host has no memory for a
  /// copy of its ranks' pieces, the save is not asynchronous and rank 0 logs why.
  void save(const std::string& folder, const std::string& tag, Contents contents, const SaveOptions& options);
  /// *Collective.* Returns when no save is under way. Throws the error of one that failed, on every rank.
  void wait();
  /// Local. True while this rank's part of a save is under way.
  bool busy() const { return busy_; }
  /// Of the last save that this rank finished.
  const SaveStatistics& statistics() const { return statistics_; }

  /// Checkpoints that options.keep_last leaves alone, and does not count: those of others. Called on rank 0 in the
  /// thread of an asynchronous save.
  using IsOthers = std::function<bool(const std::string& folder, const std::string& tag)>;
  void leave_alone(IsOthers is_others) { is_others_ = std::move(is_others); }

 private:
  struct Job;

  void begin(Job& job);
  void make_saving_folder(Job& job);
  std::string share_saving_folder(Job& job);
  std::uint64_t choose_foreground(Job& job);
  void check_free_space(const Job& job, std::uint64_t total);
  /// Whether this host has memory for `nbytes` of staging on each of its ranks.
  bool has_room_for(std::size_t nbytes) const;
  void join();
  void run(Job& job);
  void say_failure(const Job& job, int rank, const std::string& error) const;
  RankPart await_part(const Job& job, int rank) const;

  io::FileSystem& files_;
  Group group_;
  StagingMemory staging_;
  FreeMemory free_memory_;
  IsOthers is_others_;
  std::size_t staged_nbytes_ = 0;  ///< staging memory that an asynchronous save has touched
  std::thread thread_;
  std::atomic<bool> busy_{false};
  /// base::seconds_now() at which rank 0 stops to wait for ranks that may be gone.
  std::atomic<double> give_up_at_{std::numeric_limits<double>::infinity()};
  std::string what_;         ///< the save under way, for errors
  std::string error_;        ///< of the thread
  bool unreported_ = false;  ///< a thread was started and nobody has asked for its result
  SaveStatistics statistics_;
};

}  // namespace zero::checkpoint
