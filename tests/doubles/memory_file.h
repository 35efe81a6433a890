#pragma once
// An open file of MemoryFileSystem.
#include <memory>
#include <string>

#include "doubles/memory_tree.h"
#include "io/file_system.h"
#include "io/io_error.h"

namespace zero::io::memory {

class MemoryFile : public File {
 public:
  enum class Mode { kReadOnly, kReadWrite };

  /// The caller holds the tree's mutex.
  MemoryFile(std::shared_ptr<Tree> tree, Node& node, std::string path, Mode mode);
  ~MemoryFile() override;

  std::size_t alignment() const override { return 1; }
  std::string description() const override { return "memory"; }
  Request write(std::uint64_t offset, std::span<const std::byte> data) override;
  Request read(std::uint64_t offset, std::span<std::byte> data) override;
  void wait(Request request) override;
  bool done(Request) override { return true; }
  void drain() override;
  void reserve(std::uint64_t nbytes) override;
  void sync() override;
  void close() override;
  std::uint64_t size() override;

 private:
  void check_open() const;
  void release();

  const std::shared_ptr<Tree> tree_;
  Node& node_;
  const std::string path_;
  const Mode mode_;
  bool open_ = true;
  Request next_request_ = 0;
  Failure failure_;
};

}  // namespace zero::io::memory
