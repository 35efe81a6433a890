#include "kept_results_option.h"

#include <CLI/CLI.hpp>
#include <map>

namespace zero::app {

CLI::Option* add_recompute_keep(CLI::App& command, std::optional<KeptResults>& keep, const std::string& group) {
  const std::map<std::string, KeptResults> names{
      {"none", KeptResults::kNone}, {"attention", KeptResults::kAttention}, {"products", KeptResults::kProducts}};
  return command
      .add_option("--recompute-keep", keep,
                  "what such a block keeps and does not compute again: none, attention (results of fused attention), "
                  "products (and of matrix products) (default: none)")
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name("WHAT")
      ->group(group);
}

}  // namespace zero::app
