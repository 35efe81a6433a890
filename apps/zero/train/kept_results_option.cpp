#include "train/kept_results_option.h"
#include "text/number_check.h"

#include <CLI/CLI.hpp>

namespace zero::app {

CLI::Option* add_recompute_keep(CLI::App& command, std::optional<KeptResults>& keep, const std::string& group) {
  const auto take = [&keep](const std::string& what) {
    keep = what == "none" ? KeptResults::kNone : what == "attention" ? KeptResults::kAttention : KeptResults::kProducts;
  };
  return command
      .add_option_function<std::string>(
          "--recompute-keep", take,
          "what such a block keeps and does not compute again: none, attention (results of fused attention), "
          "products (and of matrix products) (default: none)")
      ->check(one_of({"none", "attention", "products"}))
      ->type_name("none|attention|products")
      ->group(group);
}

}  // namespace zero::app
