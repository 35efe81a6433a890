#pragma once
// CSV files as DeepSpeed's csv_monitor has them: one per tag, "Train/Samples/lr" in Train_Samples_lr.csv, with the
// columns "step" and what follows the tag's last slash.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/append_file.h"

namespace zero::monitor {

class CsvWriter {
 public:
  /// Makes the folder. Files that are in it are appended to, without another header. Throws IoError.
  explicit CsvWriter(std::filesystem::path folder);

  /// One row per (tag, value), in digits that read back as the same double; handed to the system at once, so that a
  /// process that is killed loses none. Throws IoError.
  void add_scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  base::AppendFile& file_of(const std::string& tag);

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<base::AppendFile>> files_;  ///< by tag
};

}  // namespace zero::monitor
