#pragma once
// A folder for the files of one test, removed with all that is in it by the process that made it.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace zero::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "zero_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (::getpid() == process_) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  const pid_t process_ = ::getpid();
};

}  // namespace zero::testing
