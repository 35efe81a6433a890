#pragma once
// Small files of Hugging Face folders.
#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <string>

#include "zero/errors.h"
#include "zero/group.h"

namespace zero::models {

/// Throws IoError.
std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// Throws IoError with it on all ranks, if the first has an error. *Collective.*
void agree_on_error(Group& group, const std::string& error);

/// Runs `work` on the first rank; what goes wrong there all ranks throw. *Collective.*
template <class Work>
void on_first(Group& group, Work work) {
  std::string error;
  if (group.rank() == 0) {
    try {
      work();
    } catch (const std::exception& problem) {
      error = problem.what();
    }
  }
  agree_on_error(group, error);
}

}  // namespace zero::models
