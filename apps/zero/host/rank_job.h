#pragma once
// Commands whose work is done by ranks: prepared by one process, told to all.
#include <filesystem>
#include <functional>
#include <string>

#include "zero/group.h"

namespace zero::app {

/// A folder for a command's own files, removed with what is in it when it ends.
class ScratchFolder {
 public:
  /// Throws IoError.
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct RankJob {
  std::string command;   ///< "generate": started again with --as-rank as a rank
  int ranks = 1;         ///< on this host, unless a launcher has started some
  bool as_rank = false;  ///< this process is one
  /// What the ranks are to do, as JSON; called once, before there are any (or by rank 0 of a launcher's). `scratch`
  /// lives until they have ended, and they all see it where they are on one host. Throws what is wrong.
  std::function<std::string(const std::filesystem::path& scratch)> prepare;
  /// On every rank. Returns the signal that has stopped it, or 0. *Collective.*
  std::function<int(const std::string& job, Group group)> run;
};

/// Called by the first rank when all of them have read what they need from the scratch folder, which then is not left
/// behind even if the process that would remove it is killed.
void remove_scratch();

/// The exit code of the command.
int run_job(const RankJob& job);

}  // namespace zero::app
