#include "doubles/memory_crash.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

namespace zero::io::memory {
namespace {

constexpr std::uint64_t kSectorNbytes = 512;  ///< what a disk writes whole or not at all

using Random = std::mt19937_64;

/// 0 .. n - 1
std::uint64_t below(Random& random, std::uint64_t n) { return random() % n; }

/// Which changes of each folder survive.
using Survivors = std::map<const Node*, std::vector<bool>>;

Survivors choose_names(const Tree& tree, const CrashPolicy& policy, Random& random) {
  Survivors chosen;
  for (const auto& node : tree.nodes) {
    const std::size_t count = node->unsynced_names.size();
    std::vector<bool> survives(count, policy.unsynced == CrashPolicy::Unsynced::kEverything);
    if (policy.unsynced == CrashPolicy::Unsynced::kRandom) {
      const std::size_t prefix = below(random, count + 1);
      for (std::size_t i = 0; i < count; ++i) {
        survives[i] = policy.names == CrashPolicy::Names::kInOrder ? i < prefix : below(random, 2) == 1;
      }
    }
    chosen[node.get()] = std::move(survives);
  }
  return chosen;
}

/// Makes prefixes such that a rename across folders is on both sides: the other side's prefix grows to it.
void join_renames(const Tree& tree, Survivors& chosen) {
  for (bool changed = true; std::exchange(changed, false);) {
    for (const auto& node : tree.nodes) {
      for (std::size_t i = 0; i < node->unsynced_names.size(); ++i) {
        const NameChange& change = node->unsynced_names[i];
        if (change.partner == nullptr || !chosen[node.get()][i]) continue;
        auto& others = chosen[change.partner];
        for (std::size_t k = 0; k < others.size(); ++k) {
          if (change.partner->unsynced_names[k].number > change.number || others[k]) continue;
          others[k] = true;
          changed = true;
        }
      }
    }
  }
}

/// The write as it may have reached the disk: sectors of it, at their place in the file.
void put_torn(std::vector<std::byte>& content, const Write& write, Random& random) {
  const std::uint64_t end = write.offset + write.data.size();
  const std::uint64_t first = write.offset / kSectorNbytes, last = (end - 1) / kSectorNbytes;
  const bool cut_off = below(random, 2) == 0;
  const std::uint64_t cut = first + below(random, last - first + 1);
  for (std::uint64_t sector = first; sector <= last; ++sector) {
    if (cut_off ? sector >= cut : below(random, 2) == 0) continue;
    const std::uint64_t from = std::max(sector * kSectorNbytes, write.offset);
    const std::uint64_t to = std::min((sector + 1) * kSectorNbytes, end);
    put(content, from, std::span(write.data).subspan(from - write.offset, to - from));
  }
}

std::vector<std::byte> content_after(const Node& file, const CrashPolicy& policy, Random& random) {
  if (policy.unsynced == CrashPolicy::Unsynced::kNothing) return file.durable_content;
  if (policy.unsynced == CrashPolicy::Unsynced::kEverything) return file.content_now;
  const std::uint64_t sort = below(random, 4);  // all and nothing often: they are what happens
  if (sort == 0) return file.durable_content;
  if (sort == 1) return file.content_now;
  std::vector<std::byte> content = file.durable_content;
  for (const Write& write : file.unsynced_writes) {
    const std::uint64_t fate = below(random, 3);
    if (fate == 0) put(content, write.offset, write.data);
    if (fate == 1) put_torn(content, write, random);
  }
  // The size may be on the disk before the data.
  if (below(random, 2) == 0) content.resize(std::max(content.size(), file.content_now.size()));
  return content;
}

}  // namespace

std::shared_ptr<Tree> crashed(const Tree& tree, const CrashPolicy& policy) {
  Random random(policy.seed);
  Survivors chosen = choose_names(tree, policy, random);
  if (policy.names == CrashPolicy::Names::kInOrder) join_renames(tree, chosen);

  auto after = std::make_shared<Tree>();
  after->free_nbytes = tree.free_nbytes;
  std::map<const Node*, Node*> copies = {{tree.root, after->root}};
  const std::function<void(const Node&, Node&)> copy_names = [&](const Node& folder, Node& copy) {
    Node::Names names = folder.durable_names;
    for (std::size_t i = 0; i < folder.unsynced_names.size(); ++i) {
      if (chosen[&folder][i]) put(names, folder.unsynced_names[i]);
    }
    for (const auto& [name, node] : names) {
      const auto [known, is_new] = copies.try_emplace(node, nullptr);
      if (is_new) {
        known->second = after->add_node(node->is_folder);
      } else if (node->is_folder) {
        continue;  // half a rename: a check of the file system leaves a folder one name
      }
      Node* const made = known->second;
      copy.names_now[name] = copy.durable_names[name] = made;
      ++made->links;
      if (!is_new) continue;
      if (node->is_folder) {
        copy_names(*node, *made);
      } else {
        made->content_now = made->durable_content = content_after(*node, policy, random);
      }
    }
  };
  copy_names(*tree.root, *after->root);
  return after;
}

}  // namespace zero::io::memory
