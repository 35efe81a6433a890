#include "text/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <type_traits>
#include <utility>

#include "host/rank_device.h"
#include "text/quantity.h"
#include "zero/errors.h"
#include "zero/lm/models.h"

namespace zero::app {
namespace {

/// Not a number where `text` is none.
double parsed(const std::string& text) {
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  return rest == text.c_str() || *rest != '\0' ? std::nan("") : value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream list{std::string(text)};
  for (std::string part; std::getline(list, part, separator);) parts.push_back(part);
  return parts;
}

/// What `read` has against a text, without the name of an option.
template <class Read>
Values readable(const char* name, Read read) {
  return {name, [read](std::string& text) -> std::string {
            try {
              read(text);
              return {};
            } catch (const ConfigError& error) {
              const std::string said = error.what();
              const std::size_t colon = said.find(": ");
              return said.starts_with("--") || colon == 0 ? said.substr(colon + 2) : said;
            }
          }};
}

}  // namespace

Values whole(std::int64_t least, std::int64_t most) {
  return {"N", [least, most](std::string& text) -> std::string {
            constexpr double kExact = 9007199254740992.0;  // 2^53
            const double value = parsed(text);
            const bool is_whole = std::isfinite(value) && std::abs(value) <= kExact && value == std::floor(value);
            if (!is_whole || value < static_cast<double>(least) || value > static_cast<double>(most)) {
              const bool is_bounded = static_cast<double>(most) < 1e12 || (value > kExact && std::isfinite(value));
              return fmt::format("got '{}', want a whole number, {}", text,
                                 is_bounded ? fmt::format("from {} to {}", least, std::min(most, std::int64_t{1} << 53))
                                            : fmt::format("at least {}", least));
            }
            text = std::to_string(static_cast<std::int64_t>(value));
            return {};
          }};
}

Values real(double least, double most, const char* name) {
  return {name, [least, most](std::string& text) -> std::string {
            const double value = parsed(text);
            if (value >= least && value <= most) return {};
            return fmt::format("got '{}', want a number from {:g} to {:g}", text, least, most);
          }};
}

Values not_empty(const char* name, const char* wanted) {
  return {name, [wanted](std::string& text) { return text.empty() ? fmt::format("want {}", wanted) : ""; }};
}

Values choice(std::string_view names) {
  return {std::string(names), [known = split(names, '|')](std::string& text) -> std::string {
            if (std::ranges::find(known, text) != known.end()) return {};
            return fmt::format("got '{}', want {}", text, fmt::join(known, ", "));
          }};
}

Values choices(std::string_view names) {
  return {"LIST", [known = split(names, '|')](std::string& text) -> std::string {
            const auto parts = split(text, ',');
            for (const std::string& one : parts) {
              if (std::ranges::find(known, one) == known.end())
                return fmt::format("got '{}', want some of {}", one, fmt::join(known, ", "));
            }
            return parts.empty() ? fmt::format("want at least one of {}", fmt::join(known, ", ")) : "";
          }};
}

Values device_name(const char* name) {
  return readable(name, [](const std::string& text) { parse_device(text); });
}
Values size_text() {
  return readable("SIZE", [](const std::string& text) { parse_nbytes("", text); });
}
Values rate_text() {
  return readable("RATE", [](const std::string& text) { parse_bandwidth("", text); });
}
Values count_text() {
  return readable("N", [](const std::string& text) { parse_count("", text); });
}
Values preset_name() {
  return readable("PRESET", [](const std::string& text) { gpt_preset(text); });
}

namespace {

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

CLI::Option* add(CLI::App& command, const OptionRow& row, bool* to) {
  return command.add_flag(row.names, *to, row.help);
}

CLI::Option* add(CLI::App& command, const OptionRow& row, std::optional<bool>* to) {
  return command.add_flag_callback(
      row.names, [to] { *to = true; }, row.help);
}

template <class T>
CLI::Option* add(CLI::App& command, const OptionRow& row, T* to) {
  CLI::Option* option = command.add_option(row.names, *to, row.help)->type_name(row.values.name);
  option->multi_option_policy(kIsList<T> ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  if constexpr (kIsList<T>) {
    // "NAME=VALUE" may have commas; words that are no numbers may be the command's arguments.
    if (row.values.name != "NAME=VALUE") option->delimiter(',');
    if (std::is_same_v<T, std::vector<std::string>>) option->allow_extra_args(false);
  }
  if constexpr (std::is_arithmetic_v<T>) option->capture_default_str();
  if constexpr (std::is_same_v<T, std::string>) {
    if (!to->empty()) option->capture_default_str();
  }
  if (row.values.name.starts_with("[")) option->expected(0, 1);
  if (row.values.check) option->transform(CLI::Validator(row.values.check, ""));
  return option->required(row.is_required);
}

}  // namespace

void add_options(CLI::App& command, const std::vector<OptionRow>& rows) {
  for (const OptionRow& row : rows) std::visit([&](auto* to) { add(command, row, to)->group(row.group); }, row.to);
  for (const OptionRow& row : rows) {
    CLI::Option* const option = command.get_option(row.names.substr(row.names.rfind(',') + 1));
    if (!row.needs.empty()) option->needs(command.get_option(row.needs));
    for (const std::string& other : split(row.excludes, ',')) option->excludes(command.get_option(other));
  }
}

std::vector<OptionRow> pick(std::vector<OptionRow> table, const std::vector<Picked>& wanted) {
  std::vector<OptionRow> rows;
  for (const Picked& one : wanted) {
    const auto has_name = [&](const OptionRow& row) {
      const auto names = split(row.names, ',');
      return std::ranges::find(names, one.name) != names.end();
    };
    rows.push_back(*std::ranges::find_if(table, has_name));
    if (!one.help.empty()) rows.back().help = one.help;
    rows.back().needs.clear();  // the others may not be here
    rows.back().excludes.clear();
  }
  return rows;
}

}  // namespace zero::app
