#pragma once
// What MemoryFileSystem is made of: files and folders that know what a power cut would leave of them.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::io::memory {

struct Node;

struct Write {
  std::uint64_t offset = 0;
  std::vector<std::byte> data;
};

/// One atomic change of the names in a folder. A null node takes the name away.
struct NameChange {
  struct Edit {
    std::string name;
    Node* node = nullptr;
  };
  std::vector<Edit> edits;
  /// The other folder of a rename or exchange across folders, and the same number there.
  Node* partner = nullptr;
  std::uint64_t number = 0;
};

/// A file or a folder. `*_now` is what everybody sees; `durable_*` with any of the unsynced changes on top is
/// what a power cut may leave.
struct Node {
  using Names = std::map<std::string, Node*>;

  bool is_folder = false;

  std::vector<std::byte> content_now, durable_content;
  std::vector<Write> unsynced_writes;

  Names names_now, durable_names;
  std::vector<NameChange> unsynced_names;

  int links = 0;    ///< visible names
  int handles = 0;  ///< open files
  bool locked = false;
};

/// Puts `data` at `offset`; a gap becomes zeros.
void put(std::vector<std::byte>& content, std::uint64_t offset, std::span<const std::byte> data);
void put(Node::Names& names, const NameChange& change);

/// Makes the file's content durable.
void commit_content(Node& file);
/// Makes the folder's names durable, and of the other folder of each rename across folders all up to it: a
/// journal holds both sides of a rename, and keeps order.
void commit_names(Node& folder);

/// The whole tree. Nodes live as long as the tree: what is no longer visible may still be durable.
struct Tree {
  std::mutex mutex;  ///< of everything here
  std::vector<std::unique_ptr<Node>> nodes;
  Node* root = nullptr;
  std::uint64_t free_nbytes = std::uint64_t{1} << 40;
  std::uint64_t next_change = 0;

  Tree();
  Node* add_node(bool is_folder);
  /// Null when there is nothing of that name.
  Node* find(std::string_view path) const;
  struct Place {
    Node* folder = nullptr;
    std::string name;
    Node* node() const;  ///< null when the name is free
  };
  /// Where a path is or could be. The errno otherwise; EBUSY for the root.
  int find_place(std::string_view path, Place& place) const;

  /// Changes visible names, remembers that they are not durable.
  void change_names(Node& folder, std::vector<NameChange::Edit> edits, Node* partner = nullptr,
                    std::uint64_t number = 0);
  /// Gives its bytes back when nobody can see the file any more.
  void release_if_unused(Node& file);
};

/// "/a/b" as {"a", "b"}; "." and empty parts go.
std::vector<std::string> parts_of(std::string_view path);

}  // namespace zero::io::memory
