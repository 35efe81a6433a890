#pragma once
// What transformers has made of tiny models (scripts/make_causal_lm_golden.py).
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "zero/lm/causal_lm.h"

namespace zero::testing {

using Tensors = std::map<std::string, at::Tensor>;

/// The folder they are in, with a slash.
extern const std::string kGoldens;

/// A safetensors file, or those of a folder; int64 and floating tensors.
Tensors read_tensors(const std::string& path);
/// fp32.
void write_safetensors(const std::string& path, const Tensors& tensors);

/// To 3 parts in 10^5 of the largest value.
void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& name);

/// A Hugging Face folder with the weights of a golden file. Names in it lack `without_prefix`. `more`: names of further
/// tensors, and what they are copies of ("-": of the embedding, negative).
void write_folder(const std::string& model, const std::string& folder, const std::string& without_prefix = "",
                  const std::map<std::string, std::string>& more = {});

/// The model of a name with its weights, in eval mode.
models::CausalLM golden_model(const std::string& name, const Tensors& golden);

}  // namespace zero::testing
