#pragma once
// The files of another file system, watched: bytes that are read are counted, and syncs of rank files can be
// held back for as long as a test likes.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/file_system.h"

namespace zero::testing {

class WatchedFiles : public io::FileSystem {
 public:
  explicit WatchedFiles(io::FileSystem& files) : files_(files) {}

  /// Bytes of File::read() of files that end in .safetensors, so far.
  std::uint64_t nbytes_read() const { return nbytes_read_; }
  void reset() { nbytes_read_ = 0; }

  /// From now on File::sync() of a file in a folder of an unfinished save waits for release().
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

  std::unique_ptr<io::File> create(const std::string& path) override {
    return std::make_unique<WatchedFile>(*this, files_.create(path), path);
  }
  std::unique_ptr<io::File> create_scratch(const std::string& folder, const io::ScratchOptions& options) override {
    return files_.create_scratch(folder, options);
  }
  std::unique_ptr<io::File> open(const std::string& path) override {
    return std::make_unique<WatchedFile>(*this, files_.open(path), path);
  }
  void make_folders(const std::string& path) override { files_.make_folders(path); }
  std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  io::FileKind kind(const std::string& path) override { return files_.kind(path); }
  void rename(const std::string& from, const std::string& to) override { files_.rename(from, to); }
  void exchange(const std::string& a, const std::string& b) override { files_.exchange(a, b); }
  void remove(const std::string& path) override { files_.remove(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }
  std::uint64_t free_nbytes(const std::string& path) override { return files_.free_nbytes(path); }
  std::unique_ptr<io::Lock> try_lock(const std::string& path) override { return files_.try_lock(path); }

 private:
  class WatchedFile : public io::File {
   public:
    WatchedFile(WatchedFiles& owner, std::unique_ptr<io::File> file, const std::string& path)
        : owner_(owner),
          file_(std::move(file)),
          is_rank_file_(path.ends_with(".safetensors")),
          is_unfinished_(path.find(".saving-") != std::string::npos) {}
    std::size_t alignment() const override { return file_->alignment(); }
    std::string description() const override { return file_->description(); }
    Request write(std::uint64_t offset, std::span<const std::byte> data) override { return file_->write(offset, data); }
    Request read(std::uint64_t offset, std::span<std::byte> data) override {
      if (is_rank_file_) owner_.nbytes_read_ += data.size();
      return file_->read(offset, data);
    }
    void wait(Request request) override { file_->wait(request); }
    bool done(Request request) override { return file_->done(request); }
    void reserve(std::uint64_t nbytes) override { file_->reserve(nbytes); }
    void drain() override { file_->drain(); }
    void sync() override {
      if (is_unfinished_) {
        std::unique_lock lock(owner_.mutex_);
        owner_.changed_.wait(lock, [&] { return !owner_.held_; });
      }
      file_->sync();
    }
    void close() override { file_->close(); }
    std::uint64_t size() override { return file_->size(); }

   private:
    WatchedFiles& owner_;
    const std::unique_ptr<io::File> file_;
    const bool is_rank_file_, is_unfinished_;
  };

  io::FileSystem& files_;
  std::atomic<std::uint64_t> nbytes_read_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

}  // namespace zero::testing
