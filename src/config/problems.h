#pragma once
// Problems of one file: collected while it is read, thrown together, one per line.
#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}

  /// Adds "source:line: text" (line 0: "source: text").
  void add(int line, std::string text);

  bool empty() const { return problems_.empty(); }
  const std::string& source() const { return source_; }

  /// Throws one ConfigError with the problems in the order of their lines (at most kShown, then how many
  /// more); does nothing when there are none.
  void throw_if_any() const;

  static constexpr std::size_t kShown = 20;

 private:
  struct Problem {
    int line;
    std::string text;
  };
  std::string source_;
  std::vector<Problem> problems_;
};

}  // namespace zero::config
