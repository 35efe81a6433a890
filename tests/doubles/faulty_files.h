#pragma once
// A file system that fails, or ends the process, at a chosen operation.
#include <cstdint>
#include <exception>
#include <memory>

#include "io/file_system.h"

namespace zero::io {

/// "The process ended here." No Error: what handles errors must not handle this.
class SimulatedCrash : public std::exception {
 public:
  const char* what() const noexcept override { return "simulated crash"; }
};

/// Passes everything on to another file system and counts, from 0 and over all files and threads,
///
///   mutations: create, create_scratch, File::write, File::reserve, File::sync, File::close of a file from create,
///   make_folders, rename,
///              exchange, remove, sync_folder, try_lock;
///   reads:     open, File::read, File::size, list, kind, free_nbytes.
///
/// The operation that fails does nothing, but for close, which closes. A failing write or read is heard of as
/// the interface says: at wait(), drain(), sync(), size() or close(), and from then on.
///
/// Any thread. The other file system outlives this one and its files.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& files);
  ~FaultyFileSystem() override;

  /// Mutation number `index` fails with this errno: EIO, ENOSPC, EROFS, EACCES, ...; those after it work.
  void fail_mutation(std::uint64_t index, int error);
  /// Mutation number `index` and every operation of whatever kind after it do nothing and throw
  /// SimulatedCrash, files that are open included. Destructors still close and unlock, as the end of a
  /// process does.
  void stop_at_mutation(std::uint64_t index);
  /// Read number `index` fails with this errno; those after it work.
  void fail_read(std::uint64_t index, int error);

  /// Mutations so far.
  std::uint64_t count() const;
  std::uint64_t read_count() const;
  /// True once the chosen failure or stop has happened.
  bool happened() const;

  std::unique_ptr<File> create(const std::string& path) override;
  std::unique_ptr<File> create_scratch(const std::string& folder, const ScratchOptions& options) override;
  std::unique_ptr<File> open(const std::string& path) override;
  void make_folders(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  FileKind kind(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void exchange(const std::string& a, const std::string& b) override;
  void remove(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  std::uint64_t free_nbytes(const std::string& path) override;
  std::unique_ptr<Lock> try_lock(const std::string& path) override;

 private:
  class Plan;
  class FaultyFile;

  FileSystem& files_;
  const std::shared_ptr<Plan> plan_;
};

}  // namespace zero::io
