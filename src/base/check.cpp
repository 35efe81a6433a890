#include "base/check.h"

namespace zero::base {

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: internal check failed: {}{}{}", file, line, expression,
                                  message.empty() ? "" : ": ", message));
}

}  // namespace zero::base
