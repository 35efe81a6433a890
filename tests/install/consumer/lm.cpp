// A program that uses the language-model toolkit as an installed library.
#include <torch/torch.h>
#include <zero/lm/causal_lm.h>
#include <zero/lm/models.h>

#include <cstdio>

int main() {
  zero::models::CausalLMConfig config = zero::models::parse_config(
      R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
          "intermediate_size": 24, "max_position_embeddings": 8})");
  zero::models::CausalLM model(config);
  const auto tokens = torch::arange(8).unsqueeze(0);
  const bool finite = model->loss(tokens, tokens).isfinite().item<bool>();
  std::printf("loss is %s; gpt-tiny has %lld parameters\n", finite ? "finite" : "not finite",
              static_cast<long long>(zero::gpt_numel(zero::gpt_preset("gpt-tiny"))));
  return finite ? 0 : 1;
}
