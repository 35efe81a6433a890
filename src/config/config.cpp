#include "zero/config.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "config/binder.h"
#include "config/jsonc.h"
#include "config/problems.h"
#include "zero/errors.h"

namespace zero {

namespace {

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  try {
    // Opening a folder succeeds; reading it throws.
    if (file.is_open()) return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {
    errno = errno != 0 ? errno : EIO;
  }
  throw IoError(fmt::format("{}: cannot read the configuration: {}", path, std::strerror(errno)));
}

}  // namespace

Config::Optimizer Config::Optimizer::defaults_of(std::string_view type) {
  Optimizer optimizer;
  optimizer.type = type;
  const OptimizerInfo* const info = find_optimizer(type);
  if (!info) return optimizer;
  for (const OptimizerDefault& one : info->defaults) {
    if (one.name == "lr") optimizer.lr = one.value;
#define ZERO_SET(where, type, field, standard, range, meaning) \
  if (one.name == #field) optimizer.field = static_cast<decltype(optimizer.field)>(one.value);
    ZERO_HYPER_PARAMETERS(ZERO_SET)
#undef ZERO_SET
  }
  return optimizer;
}

std::string Config::to_json() const {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  const nlohmann::ordered_json root = config::unbind(*this);
  std::string text = root.dump(2, ' ', false, kReplace) + "\n";
  // The spaces of a long list must not make it too long to be read.
  if (text.size() > config::kMaxTextNbytes) text = root.dump(-1, ' ', false, kReplace);
  return text;
}

Config Config::from_file(const std::string& path) { return from_text(read_file(path), path); }

Config Config::from_text(std::string_view json, std::string_view source) {
  config::Problems problems{std::string(source)};
  const config::Document document = config::parse_jsonc(json, problems);
  // A document that did not parse has nothing more to say.
  if (document.root.is_null()) problems.throw_if_any();
  Config config;
  const config::GivenKeys given = config::bind(document, config, problems);
  config::cross_check(given, config, problems);
  problems.throw_if_any();
  constexpr std::size_t kDefaultsNbytes = 64 << 10;  // what to_json() writes besides may not make it too long
  if (json.size() + kDefaultsNbytes > config::kMaxTextNbytes && config.to_json().size() > config::kMaxTextNbytes) {
    problems.add(0, fmt::format("{} bytes; a configuration with all its defaults has at most {}", json.size(),
                                config::kMaxTextNbytes));
    problems.throw_if_any();
  }
  return config;
}

}  // namespace zero
