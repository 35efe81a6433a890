#include "layout/module_tree.h"

#include <algorithm>
#include <map>
#include <set>

namespace zero::layout {
namespace {

class TreeBuilder {
 public:
  void add(const ParameterName& item) {
    auto& parameters = node(module_of(item.name)).parameters;
    if (seen_.insert(item.parameter).second) parameters.push_back(item.parameter);
  }
  ModuleNode build(const std::string& name = {}) {
    const Draft& draft = node(name);
    ModuleNode result{name, draft.parameters, {}};
    for (const auto& child : draft.children) result.children.push_back(build(child));
    return result;
  }

 private:
  struct Draft {
    std::vector<int> parameters;
    std::vector<std::string> children;
  };

  static std::string module_of(std::string_view name) {
    const auto dot = name.rfind('.');
    return std::string(name.substr(0, dot == std::string_view::npos ? 0 : dot));
  }

  Draft& node(const std::string& name) {
    const auto [found, is_new] = drafts_.try_emplace(name);
    if (is_new && !name.empty()) node(module_of(name)).children.push_back(name);
    return found->second;  // a map's elements stay where they are
  }

  std::map<std::string, Draft> drafts_;
  std::set<int> seen_;
};

void add_with_suffix(const ModuleNode& node, std::span<const std::string> suffixes, std::vector<std::string>& names) {
  const auto ends_with = [&node](const std::string& suffix) { return node.name.ends_with(suffix); };
  if (!node.name.empty() && std::ranges::any_of(suffixes, ends_with)) {
    names.push_back(node.name);
    return;
  }
  for (const auto& child : node.children) add_with_suffix(child, suffixes, names);
}

}  // namespace

ModuleNode module_tree(std::span<const ParameterName> names) {
  TreeBuilder builder;
  for (const auto& name : names) builder.add(name);
  return builder.build();
}

std::vector<std::string> modules_with_suffix(const ModuleNode& tree, std::span<const std::string> suffixes) {
  std::vector<std::string> names;
  add_with_suffix(tree, suffixes, names);
  return names;
}

}  // namespace zero::layout
