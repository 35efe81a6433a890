#include "text/number_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>

#include "host/rank_device.h"
#include "text/near_names.h"
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

CLI::Validator check(std::function<std::string(std::string&)> what) {
  CLI::Validator validator(std::move(what), "");
  return validator.description("");  // the option's own text says enough
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return check([least, most](std::string& text) -> std::string {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    const double value = parsed(text);
    const bool whole = std::isfinite(value) && std::abs(value) <= kExact && value == std::floor(value);
    if (!whole || value < static_cast<double>(least) || value > static_cast<double>(most)) {
      const bool is_bounded = static_cast<double>(most) < 1e12 || (value > kExact && std::isfinite(value));
      const std::string range = is_bounded
                                    ? fmt::format("from {} to {}", least, std::min<std::int64_t>(most, 1LL << 53))
                                    : fmt::format("at least {}", least);
      return fmt::format("got '{}', want a whole number, {}", text, range);
    }
    text = std::to_string(static_cast<std::int64_t>(value));
    return {};
  });
}

CLI::Validator real_number(double least, double most) {
  return check([least, most](std::string& text) -> std::string {
    const double value = parsed(text);
    if (value >= least && value <= most) return {};
    return fmt::format("got '{}', want a number from {:g} to {:g}", text, least, most);
  });
}

namespace {

/// What `read` has against a text, without the name of an option.
template <class Read>
CLI::Validator readable(Read read) {
  return check([read](std::string& text) -> std::string {
    try {
      read(text);
      return {};
    } catch (const ConfigError& error) {
      const std::string said = error.what();
      const std::size_t colon = said.find(": ");
      return said.starts_with("--") || colon == 0 ? said.substr(colon + 2) : said;
    }
  });
}

}  // namespace

CLI::Validator not_empty(const std::string& wanted) {
  return check([wanted](std::string& text) { return text.empty() ? "want " + wanted : std::string(); });
}

CLI::Validator one_of(std::vector<std::string> values) {
  return check([values = std::move(values)](std::string& text) -> std::string {
    if (std::ranges::find(values, text) != values.end()) return {};
    return fmt::format("got '{}', want {}", text, fmt::join(values, ", "));
  });
}

CLI::Validator some_of(std::vector<std::string> values) {
  return check([values = std::move(values)](std::string& text) -> std::string {
    std::istringstream list(text);
    bool is_empty = true;
    for (std::string one; std::getline(list, one, ','); is_empty = false) {
      if (std::ranges::find(values, one) == values.end())
        return fmt::format("got '{}', want some of {}", one, fmt::join(values, ", "));
    }
    return is_empty ? fmt::format("want at least one of {}", fmt::join(values, ", ")) : "";
  });
}

CLI::Validator device_name() {
  return readable([](const std::string& text) { parse_device(text); });
}

CLI::Validator size_text() {
  return readable([](const std::string& text) { parse_nbytes("", text); });
}

CLI::Validator rate_text() {
  return readable([](const std::string& text) { parse_bandwidth("", text); });
}

CLI::Validator count_text() {
  return readable([](const std::string& text) { parse_count("", text); });
}

CLI::Validator preset_name() {
  return readable([](const std::string& text) {
    try {
      gpt_preset(text);
    } catch (const ConfigError&) {
      const std::string near = did_you_mean(text.starts_with("gpt-") ? text : "gpt-" + text, gpt_presets());
      throw ConfigError(
          fmt::format("there is no preset '{}'{}", text,
                      near.empty() ? fmt::format("; want one of {}", fmt::join(gpt_presets(), ", ")) : near));
    }
  });
}

}  // namespace zero::app
