#include "doubles/faulty_files.h"

#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "io/io_error.h"
#include "zero/errors.h"

namespace zero::io {

/// What is to fail, and the counts.
class FaultyFileSystem::Plan {
 public:
  /// The errno with which this mutation fails, or 0. Throws SimulatedCrash.
  int mutation() {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw SimulatedCrash();
    const std::uint64_t index = mutations_++;
    if (stop_at_ == index) {
      happened_ = stopped_ = true;
      throw SimulatedCrash();
    }
    return take(mutation_fault_, index);
  }

  int read() {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw SimulatedCrash();
    return take(read_fault_, reads_++);
  }

  void check_not_stopped() {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw SimulatedCrash();
  }

  void check_mutation(std::string_view verb, const std::string& path) {
    if (const int error = mutation()) throw_io_error(verb, path, error);
  }
  void check_mutation(std::string_view verb, const std::string& from, const std::string& to) {
    if (const int error = mutation()) throw_io_error(verb, from, to, error);
  }
  void check_read(std::string_view verb, const std::string& path) {
    if (const int error = read()) throw_io_error(verb, path, error);
  }

  void fail_mutation(std::uint64_t index, int error) {
    const std::lock_guard lock(mutex_);
    mutation_fault_ = Fault{index, error};
  }
  void fail_read(std::uint64_t index, int error) {
    const std::lock_guard lock(mutex_);
    read_fault_ = Fault{index, error};
  }
  void stop_at(std::uint64_t index) {
    const std::lock_guard lock(mutex_);
    stop_at_ = index;
  }
  std::uint64_t mutations() const {
    const std::lock_guard lock(mutex_);
    return mutations_;
  }
  std::uint64_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  bool happened() const {
    const std::lock_guard lock(mutex_);
    return happened_;
  }

 private:
  struct Fault {
    std::uint64_t index = 0;
    int error = 0;
  };

  int take(const std::optional<Fault>& fault, std::uint64_t index) {
    if (!fault || fault->index != index) return 0;
    happened_ = true;
    return fault->error;
  }

  mutable std::mutex mutex_;
  std::optional<Fault> mutation_fault_, read_fault_;
  std::optional<std::uint64_t> stop_at_;
  std::uint64_t mutations_ = 0, reads_ = 0;
  bool stopped_ = false, happened_ = false;
};

class FaultyFileSystem::FaultyFile : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, std::shared_ptr<Plan> plan, std::string path, bool created)
      : file_(std::move(file)), plan_(std::move(plan)), path_(std::move(path)), created_(created) {}

  std::size_t alignment() const override { return file_->alignment(); }
  std::string description() const override { return file_->description(); }
  std::string path_for_others() const override { return file_->path_for_others(); }

  Request write(std::uint64_t offset, std::span<const std::byte> data) override {
    const int error = plan_->mutation();
    if (error == 0) return file_->write(offset, data);
    failure_.set(io_error_text("write", path_, error));
    return file_->write(offset, {});  // a number to wait for
  }

  Request read(std::uint64_t offset, std::span<std::byte> data) override {
    const int error = plan_->read();
    if (error == 0) return file_->read(offset, data);
    failure_.set(io_error_text("read", path_, error));
    return file_->read(0, {});
  }

  void wait(Request request) override {
    plan_->check_not_stopped();
    file_->wait(request);
    failure_.check();
  }

  bool done(Request request) override { return file_->done(request); }

  void reserve(std::uint64_t nbytes) override {
    plan_->check_mutation("reserve room for", path_);
    file_->reserve(nbytes);
  }

  void use_memory(std::span<std::byte> memory) override { file_->use_memory(memory); }

  void drain() override {
    plan_->check_not_stopped();
    file_->drain();
    failure_.check();
  }

  void sync() override {
    const int error = plan_->mutation();
    drain();
    if (error != 0) failure_.set(io_error_text("sync", path_, error));
    failure_.check();
    file_->sync();
  }

  void close() override {
    plan_->check_not_stopped();
    if (std::exchange(closed_, true)) return;
    const int error = created_ ? plan_->mutation() : 0;
    file_->close();
    if (error != 0) failure_.set(io_error_text("close", path_, error));
    failure_.check();
  }

  std::uint64_t size() override {
    const int error = plan_->read();
    drain();
    if (error != 0) throw_io_error("look up", path_, error);
    return file_->size();
  }

 private:
  const std::unique_ptr<File> file_;
  const std::shared_ptr<Plan> plan_;
  const std::string path_;
  const bool created_;
  bool closed_ = false;
  Failure failure_;
};

FaultyFileSystem::FaultyFileSystem(FileSystem& files) : files_(files), plan_(std::make_shared<Plan>()) {}
FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::fail_mutation(std::uint64_t index, int error) { plan_->fail_mutation(index, error); }
void FaultyFileSystem::stop_at_mutation(std::uint64_t index) { plan_->stop_at(index); }
void FaultyFileSystem::fail_read(std::uint64_t index, int error) { plan_->fail_read(index, error); }
std::uint64_t FaultyFileSystem::count() const { return plan_->mutations(); }
std::uint64_t FaultyFileSystem::read_count() const { return plan_->reads(); }
bool FaultyFileSystem::happened() const { return plan_->happened(); }

std::unique_ptr<File> FaultyFileSystem::create(const std::string& path) {
  plan_->check_mutation("create", path);
  return std::make_unique<FaultyFile>(files_.create(path), plan_, path, true);
}

std::unique_ptr<File> FaultyFileSystem::create_scratch(const std::string& folder, const ScratchOptions& options) {
  plan_->check_mutation("create a scratch file in", folder);
  return std::make_unique<FaultyFile>(files_.create_scratch(folder, options), plan_, folder + "/scratch", true);
}

std::unique_ptr<File> FaultyFileSystem::open(const std::string& path) {
  plan_->check_read("open", path);
  return std::make_unique<FaultyFile>(files_.open(path), plan_, path, false);
}

void FaultyFileSystem::make_folders(const std::string& path) {
  plan_->check_mutation("make the folder", path);
  files_.make_folders(path);
}

std::vector<std::string> FaultyFileSystem::list(const std::string& path) {
  plan_->check_read("list", path);
  return files_.list(path);
}

FileKind FaultyFileSystem::kind(const std::string& path) {
  plan_->check_read("look up", path);
  return files_.kind(path);
}

void FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  plan_->check_mutation("rename", from, to);
  files_.rename(from, to);
}

void FaultyFileSystem::exchange(const std::string& a, const std::string& b) {
  plan_->check_mutation("exchange", a, b);
  files_.exchange(a, b);
}

void FaultyFileSystem::remove(const std::string& path) {
  plan_->check_mutation("remove", path);
  files_.remove(path);
}

void FaultyFileSystem::sync_folder(const std::string& path) {
  plan_->check_mutation("sync the folder", path);
  files_.sync_folder(path);
}

std::uint64_t FaultyFileSystem::free_nbytes(const std::string& path) {
  plan_->check_read("ask for the free space of", path);
  return files_.free_nbytes(path);
}

std::unique_ptr<Lock> FaultyFileSystem::try_lock(const std::string& path) {
  plan_->check_mutation("lock", path);
  return files_.try_lock(path);
}

}  // namespace zero::io
