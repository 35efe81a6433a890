#pragma once
// The options of a command as rows of a table. A row is all there is of an option: the check of its values, help,
// completion, the manual page and errors are made of it.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace zero::app {

/// What an option takes.
struct Values {
  std::string name;  ///< in help: "N"; "fp32|bf16": completion offers these; "[RUN]": it may be left out
  /// What is wrong with a text; empty: nothing. May rewrite it: 1e3 as 1000.
  std::function<std::string(std::string&)> check = {};
};

/// Whole numbers, also written as 1e3 or 1.5e6; finite ones.
Values whole(std::int64_t least = 0, std::int64_t most = std::numeric_limits<std::int64_t>::max());
Values real(double least, double most, const char* name = "X");
/// Not empty, as an unset variable of a shell makes it; `wanted`: "a path".
Values not_empty(const char* name, const char* wanted);
/// One of "fp32|bf16|fp16"; some of them, with commas.
Values choice(std::string_view names);
Values choices(std::string_view names);
/// "24GiB", "100Gbit/s", "7.5B", as quantity.h reads them; a device that libtorch knows, whether or not there is one;
/// the name of a preset.
Values size_text();
Values rate_text();
Values count_text();
Values device_name(const char* name = "cpu|cuda");
Values preset_name();

/// Where a value goes. A bool is a flag; of others that are given twice the last one counts, but for lists.
using Target =
    std::variant<bool*, std::optional<bool>*, int*, std::int64_t*, double*, std::string*, std::optional<int>*,
                 std::optional<std::int64_t>*, std::optional<double>*, std::optional<std::string>*,
                 std::vector<std::string>*, std::vector<int>*, std::vector<std::int64_t>*>;

struct OptionRow {
  std::string names;  ///< "-n,--ranks"; "path": an argument without a name
  Target to;          ///< a default that it has already is in the help
  Values values;
  std::string help;
  std::string group = "Options";  ///< heading in the help; empty: hidden
  std::string needs = {};         ///< another option that must be given, too
  std::string excludes = {};      ///< those that must not, with commas
  bool is_required = false;
};

/// Adds them to `command`; the targets must outlive it.
void add_options(CLI::App& command, const std::vector<OptionRow>& rows);

/// Of a table that several commands share, the rows that one has.
struct Picked {
  std::string_view name;  ///< one of its names
  std::string help = {};  ///< empty: the table's
};
std::vector<OptionRow> pick(std::vector<OptionRow> table, const std::vector<Picked>& wanted);

}  // namespace zero::app
