#include "text/quantity.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string_view>

#include "zero/errors.h"

namespace zero::app {
namespace {

struct Unit {
  std::string_view name;  ///< in small letters
  double factor;
};
constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
constexpr Unit kCounts[] = {{"", 1}, {"k", 1e3}, {"m", 1e6}, {"b", 1e9}, {"g", 1e9}, {"t", 1e12}};
constexpr Unit kSizes[] = {{"b", 1},     {"kb", 1e3},  {"mb", 1e6},  {"gb", 1e9}, {"tb", 1e12},
                           {"kib", kKi}, {"mib", kMi}, {"gib", kGi}, {"tib", kTi}};
constexpr Unit kRates[] = {{"mbit/s", 1e6 / 8}, {"gbit/s", 1e9 / 8},  {"mbps", 1e6 / 8},
                           {"gbps", 1e9 / 8},   {"tbit/s", 1e12 / 8}, {"mb/s", 1e6},
                           {"gb/s", 1e9},       {"tb/s", 1e12},       {"gib/s", kGi}};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};

/// The number times its unit, infinite where it is beyond a double; negative when `text` is neither.
double parse(const std::string& text, std::span<const Unit> units) {
  char* rest = nullptr;
  const double number = std::strtod(text.c_str(), &rest);
  if (rest == text.c_str() || std::isnan(number)) return -1;
  while (*rest == ' ') ++rest;
  std::string name(rest);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : units) {
    if (unit.name == name) return number * unit.factor;
  }
  return -1;
}

std::int64_t whole(const std::string& option, const std::string& text, std::span<const Unit> units,
                   const char* wanted) {
  constexpr double kMost = 9e18;
  const double value = parse(text, units);
  if (value > 0 && value < 1) throw ConfigError(fmt::format("{}: got '{}', which is less than one", option, text));
  if (value >= 0 && value != std::floor(value) && std::isdigit(static_cast<unsigned char>(text.back())))
    throw ConfigError(fmt::format("{}: got '{}', which is not whole; want {}", option, text, wanted));
  if (value >= 0 && value < kMost) return std::llround(value);
  if (value >= kMost) throw ConfigError(fmt::format("{}: {} is too much; the most is 9e18", option, text));
  throw ConfigError(fmt::format("{}: got '{}', want {}", option, text, wanted));
}

}  // namespace

std::int64_t parse_count(const std::string& option, const std::string& text) {
  return whole(option, text, kCounts, "a number such as 7.5e9, 7.5B or 125M");
}

std::int64_t parse_nbytes(const std::string& option, const std::string& text) {
  if (!text.empty() && std::string_view("kKMGT").find(text.back()) != std::string_view::npos)
    throw ConfigError(fmt::format("{0}: got '{1}'; want {1}iB, of 1024, or {1}B, of 1000", option, text));
  // Gigabits: nobody means them by memory, nor do we guess.
  const std::size_t end = text.size();
  if (end >= 2 && text[end - 1] == 'b' && std::string_view("KMGT").find(text[end - 2]) != std::string_view::npos)
    throw ConfigError(fmt::format("{}: got '{}', in bits; want bytes, such as 24GiB, 32GB or 800MB", option, text));
  return whole(option, text, kSizes, "a size with its unit, such as 24GiB, 32GB or 800MB");
}

double parse_bandwidth(const std::string& option, const std::string& text) {
  const double rate = parse(text, kRates);
  if (rate > 0 && std::isfinite(rate)) return rate;
  throw ConfigError(fmt::format("{}: got '{}', want a rate such as 100Gbit/s or 12.5GB/s", option, text));
}

double parse_seconds(const std::string& option, const std::string& text) {
  const double seconds = parse(text, kTimes);
  if (seconds >= 0 && std::isfinite(seconds)) return seconds;
  throw ConfigError(fmt::format("{}: got '{}', want a time with its unit, such as 10us, 30s or 12h", option, text));
}

}  // namespace zero::app
