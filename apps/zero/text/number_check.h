#pragma once
// Checks of numbers and names on the command line. For Option::transform(): 1e3 becomes 1000.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace CLI {
class Validator;
}

namespace zero::app {

/// Whole numbers from `least` to `most`, also written as 1e3 or 1.5e6.
CLI::Validator whole_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());

/// Finite numbers from `least` to `most`.
CLI::Validator real_number(double least, double most);

/// Not empty, as an unset variable of a shell makes it; `wanted`: "a path".
CLI::Validator not_empty(const std::string& wanted);

/// One of `values`.
CLI::Validator one_of(std::vector<std::string> values);

/// Some of `values`, with commas.
CLI::Validator some_of(std::vector<std::string> values);

/// The name of a device that libtorch knows, whether or not there is one.
CLI::Validator device_name();

/// "24GiB", "100Gbit/s", "7.5B", as quantity.h reads them; and the name of a preset.
CLI::Validator size_text();
CLI::Validator rate_text();
CLI::Validator count_text();
CLI::Validator preset_name();

}  // namespace zero::app
