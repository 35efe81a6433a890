#pragma once
// The manifest of a checkpoint: which tensors there are and where every element of them lies. One JSON file;
// its last member is a checksum of all before it, so that no byte of it can change unnoticed. The format is
// docs/checkpoint_format.md.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checksum.h"
#include "checkpoint/element_order.h"
#include "checkpoint/element_type.h"
#include "io/file_system.h"

namespace zero::checkpoint {

/// What this build writes. It reads version 1 too, which has no boxes.
inline constexpr int kFormatVersion = 2;
inline constexpr std::uint64_t kBlockNbytes = 1 << 20;
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";

/// What a tensor is of its parameter or buffer, as the format calls it. Every other kind is a state of the
/// optimizer, by its name: lower-case letters, digits and underscores.
namespace kinds {
inline constexpr const char* kWeight = "weight";             ///< at full precision: the fp32 master where there is one
inline constexpr const char* kGradientSum = "gradient_sum";  ///< over the micro-batches of a window that is not over
inline constexpr const char* kBuffer = "buffer";
inline constexpr const char* kRandomState = "random_state";  ///< a random generator's of one rank
// Of islands that train apart (zerotorch.local_steps): what they started from, and the outer momentum.
inline constexpr const char* kOuterWeight = "outer_weight";
inline constexpr const char* kOuterMomentum = "outer_momentum";

/// A kind as the island has it; the first one's has no prefix: "island2_exp_avg".
std::string of_island(int island, std::string_view kind);
struct OfIsland {
  int island = 0;
  std::string_view kind;
};
/// The other way round; views `kind`.
OfIsland parse_island(std::string_view kind);
}  // namespace kinds

inline constexpr std::string_view kBetweenExchanges =
    "saved between two exchanges of islands that train apart (zerotorch.local_steps): these are the weights of the "
    "first one";

struct TensorInfo {
  std::string name;  ///< the module's own
  std::string kind = kinds::kWeight;
  ElementType dtype = ElementType::kF32;
  std::vector<std::int64_t> shape;
  ElementOrder order;                            ///< of the elements, in all files together
  ElementType module_dtype = ElementType::kF32;  ///< what the module held
  bool trainable = false;
  std::vector<std::string> aliases;  ///< other names of the same parameter

  std::int64_t numel() const;
  std::string key() const;  ///< "kind/name": its name in the files
};

/// Consecutive elements of a tensor, in its order, in a file.
struct PiecePlace {
  int file = 0;              ///< index into Manifest::files
  std::uint64_t offset = 0;  ///< bytes from the start of the file
  std::int64_t begin = 0;    ///< first element
  std::int64_t numel = 0;
  std::vector<Checksum> checksums;  ///< one per kBlockNbytes from `offset` on
};

struct ManifestTensor {
  TensorInfo info;
  std::vector<PiecePlace> pieces;  ///< by `begin`; together exactly the tensor
};

struct ManifestFile {
  std::string name;
  std::uint64_t nbytes = 0;
  std::uint64_t header_nbytes = 0;  ///< length field and padding included
  Checksum header_checksum = 0;
};

struct Manifest {
  std::string id;  ///< 32 hexadecimal digits, also in the metadata of every file
  std::string tag;
  std::int64_t created_unix_ns = 0;
  std::int64_t global_steps = 0;
  int world_size = 0;
  std::string versions = "{}", state = "{}", client_state = "{}", config = "{}";  ///< JSON
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;

  /// Null when there is none.
  const ManifestTensor* find(std::string_view kind, std::string_view name) const;
  std::uint64_t nbytes() const;  ///< of all files
};

std::string to_text(const Manifest& manifest);
/// Checks everything that can be checked without the files: the checksum, every number's range, that pieces
/// cover their tensors and lie in their files. `where` names the file in errors. Throws CheckpointError.
Manifest parse_manifest(std::string_view text, const std::string& where);
/// The manifest of a checkpoint's folder. Throws CheckpointError.
Manifest read_manifest(io::FileSystem& files, const std::string& folder);
/// Whether that folder's manifest has the checksum it states, whatever else it says. Throws CheckpointError
/// when there is none.
bool has_intact_manifest(io::FileSystem& files, const std::string& folder);

// ---- fragments: what one rank contributes -------------------------------------------------------------

/// One rank's file and the places of its pieces; `tensor` is the index into the common list of tensors.
struct RankPart {
  struct Place {
    std::size_t tensor = 0;
    PiecePlace place;
  };
  ManifestFile file;
  std::vector<Place> places;
};
std::string to_text(const RankPart& part);
RankPart parse_rank_part(std::string_view text, const std::string& where);

}  // namespace zero::checkpoint
