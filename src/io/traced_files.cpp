#include "io/traced_files.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace zero::io {
namespace {

class TracedFile final : public File {
 public:
  TracedFile(std::unique_ptr<File> file, base::Trace& trace) : file_(std::move(file)), trace_(trace) {}

  std::size_t alignment() const override { return file_->alignment(); }
  std::string description() const override { return file_->description(); }
  std::string path_for_others() const override { return file_->path_for_others(); }
  Request write(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::int64_t begin_ns = base::monotonic_ns();
    return note(file_->write(offset, data), "write", begin_ns, data.size());
  }
  Request read(std::uint64_t offset, std::span<std::byte> data) override {
    const std::int64_t begin_ns = base::monotonic_ns();
    return note(file_->read(offset, data), "read", begin_ns, data.size());
  }
  void wait(Request request) override {
    file_->wait(request);
    tell([&](const Pending& one) { return one.request == request; });
  }
  bool done(Request request) override {
    if (!file_->done(request)) return false;
    tell([&](const Pending& one) { return one.request == request; });
    return true;
  }
  void drain() override {
    file_->drain();
    tell([](const Pending&) { return true; });
  }
  void reserve(std::uint64_t nbytes) override { file_->reserve(nbytes); }
  void use_memory(std::span<std::byte> memory) override { file_->use_memory(memory); }
  void sync() override { file_->sync(); }
  void close() override { file_->close(); }
  std::uint64_t size() override { return file_->size(); }

 private:
  struct Pending {
    Request request = 0;
    std::string_view name;
    std::int64_t begin_ns = 0, nbytes = 0;
  };

  Request note(Request request, std::string_view name, std::int64_t begin_ns, std::size_t nbytes) {
    if (trace_.records()) pending_.push_back({request, name, begin_ns, static_cast<std::int64_t>(nbytes)});
    return request;
  }
  template <class IsDone>
  void tell(const IsDone& is_done) {
    if (pending_.empty()) return;
    const std::int64_t now_ns = base::monotonic_ns();
    std::erase_if(pending_, [&](const Pending& one) {
      if (!is_done(one)) return false;
      trace_.add_call(base::Trace::Row::kDisk, one.name, {}, one.begin_ns, now_ns, one.nbytes);
      return true;
    });
  }

  const std::unique_ptr<File> file_;
  base::Trace& trace_;
  std::vector<Pending> pending_;
};

class TracedFiles final : public FileSystem {
 public:
  TracedFiles(FileSystem& files, base::Trace& trace) : files_(files), trace_(trace) {}

  std::unique_ptr<File> create_scratch(const std::string& folder, const ScratchOptions& options) override {
    return std::make_unique<TracedFile>(files_.create_scratch(folder, options), trace_);
  }
  std::unique_ptr<File> create(const std::string& path) override { return files_.create(path); }
  /// How ranks of a host read each other's scratch files.
  std::unique_ptr<File> open(const std::string& path) override {
    return std::make_unique<TracedFile>(files_.open(path), trace_);
  }
  void make_folders(const std::string& path) override { files_.make_folders(path); }
  std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  FileKind kind(const std::string& path) override { return files_.kind(path); }
  void rename(const std::string& from, const std::string& to) override { files_.rename(from, to); }
  void exchange(const std::string& a, const std::string& b) override { files_.exchange(a, b); }
  void remove(const std::string& path) override { files_.remove(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }
  std::uint64_t free_nbytes(const std::string& path) override { return files_.free_nbytes(path); }
  std::unique_ptr<Lock> try_lock(const std::string& path) override { return files_.try_lock(path); }

 private:
  FileSystem& files_;
  base::Trace& trace_;
};

}  // namespace

std::unique_ptr<FileSystem> make_traced_files(FileSystem& files, base::Trace& trace) {
  return std::make_unique<TracedFiles>(files, trace);
}

}  // namespace zero::io
