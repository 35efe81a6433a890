#pragma once
// A file system whose scratch files give back other bytes than were written, once.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "doubles/faulty_files.h"

namespace zero::io {

/// Turns a bit of what read number `index` brings.
class LyingFileSystem : public FaultyFileSystem {
 public:
  LyingFileSystem(FileSystem& files, std::uint64_t index) : FaultyFileSystem(files), files_(files), index_(index) {}

  std::unique_ptr<File> create_scratch(const std::string& folder, const ScratchOptions& options) override {
    return std::make_unique<LyingFile>(files_.create_scratch(folder, options), *this);
  }
  bool has_lied() const { return has_lied_; }

 private:
  class LyingFile : public File {
   public:
    LyingFile(std::unique_ptr<File> file, LyingFileSystem& files) : file_(std::move(file)), files_(files) {}
    std::size_t alignment() const override { return file_->alignment(); }
    std::string description() const override { return file_->description(); }
    Request write(std::uint64_t offset, std::span<const std::byte> data) override { return file_->write(offset, data); }
    Request read(std::uint64_t offset, std::span<std::byte> data) override {
      const Request request = file_->read(offset, data);
      if (files_.reads_++ == files_.index_) {
        data[files_.index_ * 37 % data.size()] ^= std::byte{4};
        files_.has_lied_ = true;
      }
      return request;
    }
    void wait(Request request) override { file_->wait(request); }
    bool done(Request request) override { return file_->done(request); }
    void drain() override { file_->drain(); }
    void reserve(std::uint64_t nbytes) override { file_->reserve(nbytes); }
    void sync() override { file_->sync(); }
    void close() override { file_->close(); }
    std::uint64_t size() override { return file_->size(); }

   private:
    std::unique_ptr<File> file_;
    LyingFileSystem& files_;
  };

  FileSystem& files_;
  std::uint64_t index_, reads_ = 0;
  bool has_lied_ = false;
};

}  // namespace zero::io
