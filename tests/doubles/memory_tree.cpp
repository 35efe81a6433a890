#include "doubles/memory_tree.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace zero::io::memory {
namespace {

void commit_names_until(Node& folder, std::uint64_t number) {
  const auto end = std::find_if(folder.unsynced_names.begin(), folder.unsynced_names.end(),
                                [&](const NameChange& change) { return change.number > number; });
  const std::vector<NameChange> done(folder.unsynced_names.begin(), end);
  folder.unsynced_names.erase(folder.unsynced_names.begin(), end);
  for (const NameChange& change : done) {
    put(folder.durable_names, change);
    if (change.partner != nullptr) commit_names_until(*change.partner, change.number);
  }
}

}  // namespace

void put(std::vector<std::byte>& content, std::uint64_t offset, std::span<const std::byte> data) {
  if (data.empty()) return;
  if (content.size() < offset + data.size()) content.resize(offset + data.size());
  std::memcpy(content.data() + offset, data.data(), data.size());
}

void put(Node::Names& names, const NameChange& change) {
  for (const NameChange::Edit& edit : change.edits) {
    if (edit.node == nullptr) {
      names.erase(edit.name);
    } else {
      names[edit.name] = edit.node;
    }
  }
}

void commit_content(Node& file) {
  for (const Write& write : file.unsynced_writes) put(file.durable_content, write.offset, write.data);
  file.unsynced_writes.clear();
}

void commit_names(Node& folder) {
  if (!folder.unsynced_names.empty()) commit_names_until(folder, folder.unsynced_names.back().number);
}

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.emplace_back(part);
    }
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return parts;
}

Tree::Tree() {
  root = add_node(true);
  root->links = 1;
}

Node* Tree::add_node(bool is_folder) {
  nodes.push_back(std::make_unique<Node>());
  nodes.back()->is_folder = is_folder;
  return nodes.back().get();
}

Node* Tree::find(std::string_view path) const {
  Node* node = root;
  for (const std::string& part : parts_of(path)) {
    const auto found = node->names_now.find(part);
    if (found == node->names_now.end()) return nullptr;
    node = found->second;
  }
  return node;
}

Node* Tree::Place::node() const {
  const auto found = folder->names_now.find(name);
  return found == folder->names_now.end() ? nullptr : found->second;
}

int Tree::find_place(std::string_view path, Place& place) const {
  std::vector<std::string> parts = parts_of(path);
  if (parts.empty()) return EBUSY;
  place.name = std::move(parts.back());
  parts.pop_back();
  place.folder = root;
  for (const std::string& part : parts) {
    const auto found = place.folder->names_now.find(part);
    if (found == place.folder->names_now.end()) return ENOENT;
    if (!found->second->is_folder) return ENOTDIR;
    place.folder = found->second;
  }
  return 0;
}

void Tree::change_names(Node& folder, std::vector<NameChange::Edit> edits, Node* partner, std::uint64_t number) {
  std::vector<Node*> before;
  for (const auto& edit : edits) {
    const auto found = folder.names_now.find(edit.name);
    if (found != folder.names_now.end()) before.push_back(found->second);
    if (edit.node != nullptr) ++edit.node->links;
  }
  NameChange change{std::move(edits), partner, partner != nullptr ? number : next_change++};
  put(folder.names_now, change);
  folder.unsynced_names.push_back(std::move(change));
  for (Node* node : before) {
    --node->links;
    release_if_unused(*node);
  }
}

void Tree::release_if_unused(Node& file) {
  // The bytes stay in memory: a power cut may bring the name back.
  if (!file.is_folder && file.links == 0 && file.handles == 0) free_nbytes += file.content_now.size();
}

}  // namespace zero::io::memory
