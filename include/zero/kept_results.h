#pragma once

namespace zero {

/// Activation checkpointing: results of operators that are kept, and not computed again. Each keeps what those before
/// it do.
enum class KeptResults {
  kNone,
  kAttention,  ///< of fused attention: the product that grows with the square of the sequence
  kProducts,   ///< and of matrix products and convolutions: what is computed again costs little
};

}  // namespace zero
