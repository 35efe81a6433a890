#include "train/train_options.h"

namespace zero::app {

std::vector<OptionRow> train_rows(TrainOptions& options) {
  std::vector<OptionRow> rows;
  std::string fixed;  // what --resume and --restart exclude: the run has decided it
#define ZERO_ROW(when, in_group, type, name, value, option, takes, text, ...)                                 \
  rows.push_back(                                                                                             \
      {.names = option, .to = &options.name, .values = takes, .help = text, .group = in_group, __VA_ARGS__}); \
  ZERO_IF_NEW(when, fixed += fixed.empty() ? option : "," option;)
  ZERO_TRAIN_OPTIONS(ZERO_ROW)
#undef ZERO_ROW
  for (OptionRow& row : rows) {
    if (row.names == "--resume" || row.names == "--restart")
      row.excludes = row.excludes.empty() ? fixed : row.excludes + "," + fixed;
  }
  return rows;
}

std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    result += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    if (escape) ++i;
  }
  return result;
}

}  // namespace zero::app
