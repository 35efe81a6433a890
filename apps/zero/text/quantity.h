#pragma once
// Numbers with units, as people write them on a command line.
#include <cstdint>
#include <string>

namespace zero::app {

/// "7.5e9", "7.5B" or "125M" -> a whole number. k, M, B (or G) and T are powers of 1,000. Throws ConfigError
/// that begins with `option` for anything else.
std::int64_t parse_count(const std::string& option, const std::string& text);

/// "24GiB", "32GB" or "512B" -> bytes; a number without its unit is an error. KB, MB, GB, TB are powers of
/// 1,000, KiB to TiB of 1,024. Throws ConfigError.
std::int64_t parse_nbytes(const std::string& option, const std::string& text);

/// "100Gbit/s", "12.5GB/s" or "10Gbps" -> bytes per second. Throws ConfigError.
double parse_bandwidth(const std::string& option, const std::string& text);

/// "10us", "1.5ms", "30s", "5min", "12h" or "90d" -> seconds. Throws ConfigError.
double parse_seconds(const std::string& option, const std::string& text);

}  // namespace zero::app
