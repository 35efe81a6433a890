#include "doubles/memory_files.h"

#include <cerrno>
#include <functional>
#include <utility>

#include "doubles/memory_crash.h"
#include "doubles/memory_file.h"
#include "doubles/memory_tree.h"
#include "io/io_error.h"

namespace zero::io {
namespace {

using memory::MemoryFile;
using memory::Node;
using memory::Tree;

class MemoryLock : public Lock {
 public:
  MemoryLock(std::shared_ptr<Tree> tree, Node& node) : tree_(std::move(tree)), node_(node) {}
  ~MemoryLock() override {
    const std::lock_guard lock(tree_->mutex);
    node_.locked = false;
  }

 private:
  const std::shared_ptr<Tree> tree_;
  Node& node_;
};

Node& file_at(const Tree& tree, std::string_view verb, const std::string& path) {
  Tree::Place place;
  const int error = tree.find_place(path, place);
  if (error != 0) throw_io_error(verb, path, error == EBUSY ? EISDIR : error);
  Node* node = place.node();
  if (node == nullptr) throw_io_error(verb, path, ENOENT);
  if (node->is_folder) throw_io_error(verb, path, EISDIR);
  return *node;
}

Node& folder_at(const Tree& tree, std::string_view verb, const std::string& path) {
  Node* node = tree.find(path);
  if (node == nullptr) throw_io_error(verb, path, ENOENT);
  if (!node->is_folder) throw_io_error(verb, path, ENOTDIR);
  return *node;
}

/// True when `folder` is `inside` or somewhere above it.
bool holds(const Node& folder, const Node& inside) {
  if (&folder == &inside) return true;
  for (const auto& [name, node] : folder.names_now) {
    if (node->is_folder && holds(*node, inside)) return true;
  }
  return false;
}

int rename_error(const Node* from, const Tree::Place& to) {
  if (from == nullptr) return ENOENT;
  if (from->is_folder && holds(*from, *to.folder)) return EINVAL;
  const Node* target = to.node();
  if (target == nullptr) return 0;
  if (target->is_folder && !from->is_folder) return EISDIR;
  if (!target->is_folder && from->is_folder) return ENOTDIR;
  return target->is_folder && !target->names_now.empty() ? ENOTEMPTY : 0;
}

}  // namespace

MemoryFileSystem::MemoryFileSystem() : tree_(std::make_shared<Tree>()) {}
MemoryFileSystem::MemoryFileSystem(std::shared_ptr<Tree> tree) : tree_(std::move(tree)) {}
MemoryFileSystem::~MemoryFileSystem() = default;

std::unique_ptr<File> MemoryFileSystem::create(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  Tree::Place place;
  const int error = tree_->find_place(path, place);
  if (error != 0) throw_io_error("create", path, error == EBUSY ? EEXIST : error);
  if (place.node() != nullptr) throw_io_error("create", path, EEXIST);
  Node* node = tree_->add_node(false);
  tree_->change_names(*place.folder, {{place.name, node}});
  return std::make_unique<MemoryFile>(tree_, *node, path, MemoryFile::Mode::kReadWrite);
}

std::unique_ptr<File> MemoryFileSystem::create_scratch(const std::string& folder, const ScratchOptions&) {
  const std::lock_guard lock(tree_->mutex);
  folder_at(*tree_, "create a scratch file in", folder);
  return std::make_unique<MemoryFile>(tree_, *tree_->add_node(false), folder + "/scratch",
                                      MemoryFile::Mode::kReadWrite);
}

std::unique_ptr<File> MemoryFileSystem::open(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  return std::make_unique<MemoryFile>(tree_, file_at(*tree_, "open", path), path, MemoryFile::Mode::kReadOnly);
}

void MemoryFileSystem::make_folders(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  Node* folder = tree_->root;
  Node* made_in = nullptr;  // the folder of the one made last, which is a parent if there is another
  for (const std::string& part : memory::parts_of(path)) {
    if (made_in != nullptr) memory::commit_names(*made_in);
    const auto found = folder->names_now.find(part);
    if (found != folder->names_now.end()) {
      if (!found->second->is_folder) throw_io_error("make the folder", path, ENOTDIR);
      made_in = nullptr;
      folder = found->second;
    } else {
      Node* made = tree_->add_node(true);
      tree_->change_names(*folder, {{part, made}});
      made_in = folder;
      folder = made;
    }
  }
}

std::vector<std::string> MemoryFileSystem::list(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, node] : folder_at(*tree_, "list", path).names_now) names.push_back(name);
  return names;
}

FileKind MemoryFileSystem::kind(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  const Node* node = tree_->find(path);
  if (node == nullptr) return FileKind::kNone;
  return node->is_folder ? FileKind::kFolder : FileKind::kFile;
}

void MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(tree_->mutex);
  Tree::Place source, target;
  int error = tree_->find_place(from, source);
  if (error == 0) error = tree_->find_place(to, target);
  if (error == 0) error = rename_error(source.node(), target);
  if (error != 0) throw_io_error("rename", from, to, error);
  Node* node = source.node();
  if (target.node() == node) return;
  if (source.folder == target.folder) {
    tree_->change_names(*source.folder, {{source.name, nullptr}, {target.name, node}});
  } else {
    const std::uint64_t number = tree_->next_change++;
    tree_->change_names(*target.folder, {{target.name, node}}, source.folder, number);
    tree_->change_names(*source.folder, {{source.name, nullptr}}, target.folder, number);
  }
}

void MemoryFileSystem::exchange(const std::string& a, const std::string& b) {
  const std::lock_guard lock(tree_->mutex);
  Tree::Place one, other;
  int error = tree_->find_place(a, one);
  if (error == 0) error = tree_->find_place(b, other);
  if (error == 0 && (one.node() == nullptr || other.node() == nullptr)) error = ENOENT;
  if (error == 0 && one.node() != other.node() &&
      (holds(*one.node(), *other.folder) || holds(*other.node(), *one.folder))) {
    error = EINVAL;
  }
  if (error != 0) throw_io_error("exchange", a, b, error);
  Node *first = one.node(), *second = other.node();
  if (first == second) return;
  if (one.folder == other.folder) {
    tree_->change_names(*one.folder, {{one.name, second}, {other.name, first}});
  } else {
    const std::uint64_t number = tree_->next_change++;
    ++first->links;  // it has no name between the two
    tree_->change_names(*one.folder, {{one.name, second}}, other.folder, number);
    tree_->change_names(*other.folder, {{other.name, first}}, one.folder, number);
    --first->links;
  }
}

void MemoryFileSystem::remove(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  Tree::Place place;
  int error = tree_->find_place(path, place);
  if (error == 0 && place.node() == nullptr) error = ENOENT;
  if (error == 0 && !place.node()->names_now.empty()) error = ENOTEMPTY;
  if (error != 0) throw_io_error("remove", path, error);
  tree_->change_names(*place.folder, {{place.name, nullptr}});
}

void MemoryFileSystem::sync_folder(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  memory::commit_names(folder_at(*tree_, "sync the folder", path));
}

std::uint64_t MemoryFileSystem::free_nbytes(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  folder_at(*tree_, "ask for the free space of", path);
  return tree_->free_nbytes;
}

std::unique_ptr<Lock> MemoryFileSystem::try_lock(const std::string& path) {
  const std::lock_guard lock(tree_->mutex);
  Tree::Place place;
  const int error = tree_->find_place(path, place);
  if (error != 0) throw_io_error("open the lock", path, error == EBUSY ? EISDIR : error);
  Node* node = place.node();
  if (node == nullptr) {
    node = tree_->add_node(false);
    tree_->change_names(*place.folder, {{place.name, node}});
  }
  if (node->is_folder) throw_io_error("open the lock", path, EISDIR);
  if (std::exchange(node->locked, true)) return nullptr;
  return std::make_unique<MemoryLock>(tree_, *node);
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_crash(const CrashPolicy& policy) const {
  const std::lock_guard lock(tree_->mutex);
  return std::unique_ptr<MemoryFileSystem>(new MemoryFileSystem(memory::crashed(*tree_, policy)));
}

void MemoryFileSystem::set_free_nbytes(std::uint64_t nbytes) {
  const std::lock_guard lock(tree_->mutex);
  tree_->free_nbytes = nbytes;
}

std::vector<std::byte> MemoryFileSystem::bytes(const std::string& path) const {
  const std::lock_guard lock(tree_->mutex);
  return file_at(*tree_, "read", path).content_now;
}

void MemoryFileSystem::set_bytes(const std::string& path, std::vector<std::byte> bytes) {
  const std::lock_guard lock(tree_->mutex);
  Node& node = file_at(*tree_, "write", path);
  node.unsynced_writes.clear();
  node.durable_content = bytes;
  node.content_now = std::move(bytes);
}

std::vector<std::string> MemoryFileSystem::paths() const {
  const std::lock_guard lock(tree_->mutex);
  std::vector<std::string> all;
  const std::function<void(const Node&, const std::string&)> visit = [&](const Node& folder, const std::string& path) {
    for (const auto& [name, node] : folder.names_now) {
      const std::string inner = path + "/" + name;
      all.push_back(inner);
      visit(*node, inner);
    }
  };
  visit(*tree_->root, "");
  return all;
}

}  // namespace zero::io
