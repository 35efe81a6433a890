#!/usr/bin/env python3
"""Writes tests/data/causal_lm/*.safetensors and *.json: what transformers makes of tiny models of each family, for
lm/tests/causal_lm_test.cpp.

Each model has random weights (norms and biases, too, so that none can be left out unnoticed), and the file has them as
save_pretrained() names them, with tokens, targets, logits, loss and the gradient of every parameter as they come out in
float64; the files keep float32. Experts are named as on disk. generated.json: the likeliest tokens, one after the other,
after the first five of each model. lora_*: the same with PEFT's adapters beside the weights of those models. Needs
transformers and peft. Usage: make_causal_lm_golden.py [folder]
"""
import json
import pathlib
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

SMALL = {
    "vocab_size": 23,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "head_dim": 4,
}
LENGTH = 9
PROMPT = 5


def llama(rope=None, **more):
    return transformers.LlamaConfig(**{**SMALL, "rope_theta": 100.0, "rope_scaling": rope, **more})


MODELS = {
    "gpt2": transformers.GPT2Config(vocab_size=23, n_embd=8, n_layer=2, n_head=2, n_positions=12),
    "gpt2_untied": transformers.GPT2Config(
        vocab_size=23, n_embd=8, n_layer=1, n_head=2, n_positions=12, n_inner=20, tie_word_embeddings=False
    ),
    "llama": llama(),
    "llama_biases_tied": llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama_linear": llama({"rope_type": "linear", "factor": 2.5}),
    "llama_dynamic": llama({"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=6),
    "llama_llama3": llama(
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        head_dim=8,
    ),
    "llama_yarn": llama({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, head_dim=8),
    "llama_yarn_mscale": llama(
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "beta_fast": 8,
            "beta_slow": 2,
            "truncate": False,
        },
        head_dim=8,
    ),
    "llama_longrope": llama(
        {
            "rope_type": "longrope",
            "factor": 2.0,
            "long_factor": [1.5, 3.0],
            "short_factor": [1.0, 1.25],
            "original_max_position_embeddings": 6,
        }
    ),
    "mistral": transformers.MistralConfig(**SMALL, sliding_window=4),
    "qwen2": transformers.Qwen2Config(
        **{k: v for k, v in SMALL.items() if k != "head_dim"}, rope_theta=1000.0, hidden_act="silu"
    ),
    "qwen2_windows": transformers.Qwen2Config(
        **{k: v for k, v in SMALL.items() if k != "head_dim"},
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
        tie_word_embeddings=True,
    ),
    "qwen3": transformers.Qwen3Config(**{**SMALL, "head_dim": 6}, rope_theta=1000.0),
    "mixtral": transformers.MixtralConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.05
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SMALL,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=6,
        norm_topk_prob=True,
        output_router_logits=True,
        router_aux_loss_coef=0.02,
    ),
    "qwen3_moe_mixed": transformers.Qwen3MoeConfig(
        **{**SMALL, "num_hidden_layers": 3},
        num_experts=4,
        num_experts_per_tok=1,
        moe_intermediate_size=6,
        norm_topk_prob=False,
        decoder_sparse_step=2,
        mlp_only_layers=[2],
    ),
}


LORA = {
    "gpt2": {"r": 2},
    "llama": {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj", "gate_proj"]},
    "llama_biases_tied": {"r": 4, "lora_alpha": 4, "use_rslora": True, "target_modules": ["self_attn.k_proj", "up_proj"]},
    "mixtral": {"r": 1, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]},
}


def on_disk(model, values, folder):
    """`values` of the model's parameters as save_pretrained() names and cuts them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    model.save_pretrained(folder)
    return load_file(pathlib.Path(folder) / "model.safetensors")


@torch.no_grad()
def likeliest(model, prompt, count):
    """Without a cache, whose keys transformers does not turn again where rotations depend on the length."""
    text = prompt[None]
    for _ in range(count):
        logits = model(input_ids=text, use_cache=False).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        assert first - second > 1e-5, "too close to call"
        text = torch.cat([text, logits.argmax().view(1, 1)], 1)
    return text[0, len(prompt) :].tolist()


def make(name, config, folder):
    """Returns what it generates."""
    torch.manual_seed(sum(name.encode()))
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    for parameter in model.parameters():
        shift = 1.0 if parameter.dim() == 1 and parameter.mean() > 0.5 else 0.0
        parameter.data.copy_((torch.randn(parameter.shape) * 0.3 + shift).float())
    model.eval()
    tokens = torch.randint(0, 23, (2, LENGTH))
    targets = torch.randint(0, 23, (2, LENGTH))
    targets[0, 2] = targets[1, 7] = -100
    more = {"output_router_logits": True} if getattr(config, "output_router_logits", False) else {}
    out = model(input_ids=tokens, **more)
    loss = torch.nn.functional.cross_entropy(out.logits.view(-1, 23), targets.view(-1))
    if more:
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        experts = getattr(config, "num_experts", None) or config.num_local_experts
        loss = loss + config.router_aux_loss_coef * load_balancing_loss_func(
            out.router_logits, experts, config.num_experts_per_tok
        )
    loss.backward()
    generated = likeliest(model, tokens[0, :PROMPT], 7 if name.startswith("gpt2") else 14)
    tensors = {"tokens": tokens, "targets": targets, "logits": out.logits.detach().float(), "loss": loss.detach().float()}
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    gradients = {
        key: torch.zeros_like(value) if value.grad is None else value.grad for key, value in model.named_parameters()
    }
    with tempfile.TemporaryDirectory() as place:
        for kind, values in (("weight", weights), ("gradient", gradients)):
            for key, value in on_disk(model, values, place).items():
                tensors[f"{kind}/{key}"] = value.float().contiguous()
        text = json.loads((pathlib.Path(place) / "config.json").read_text())
    text["dtype"] = "float32"
    (folder / f"{name}.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    save_file(tensors, folder / f"{name}.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {sum(v.numel() for v in weights.values())} parameters")
    return generated


def make_lora(name, options, folder):
    """Adapters with random values beside the weights of a golden file, which has tokens and targets, too."""
    base = load_file(folder / f"{name}.safetensors")
    config = transformers.AutoConfig.from_pretrained(folder / f"{name}.json")
    config._attn_implementation = config._experts_implementation = "eager"
    with tempfile.TemporaryDirectory() as place:
        weights = {key[7:]: value for key, value in base.items() if key.startswith("weight/")}
        save_file(weights, pathlib.Path(place) / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(place)
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64, config=config)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options), autocast_adapter_dtype=False)
        torch.manual_seed(len(name))
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_((torch.randn(parameter.shape) * 0.3).float())
        model.double().eval()
        logits = model(input_ids=base["tokens"]).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 23), base["targets"].view(-1))
        loss.backward()
        tensors = {"logits": logits.detach().float(), "loss": loss.detach().float()}
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                key = key.replace(".default", "")
                tensors["adapter/" + key] = parameter.detach().float()
                tensors["gradient/" + key] = parameter.grad.float()
        model.save_pretrained(place)
        text = json.loads((pathlib.Path(place) / "adapter_config.json").read_text())
    text["target_modules"] = sorted(text["target_modules"])
    text["base_model_name_or_path"] = None
    (folder / f"lora_{name}.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    save_file(tensors, folder / f"lora_{name}.safetensors")
    print(f"lora_{name}: loss {loss.item():.6f}")


def main():
    default = pathlib.Path(__file__).parents[1] / "tests" / "data" / "causal_lm"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    generated = {name: make(name, config, folder) for name, config in MODELS.items()}
    (folder / "generated.json").write_text(json.dumps(generated, indent=1) + "\n")
    for name, options in LORA.items():
        make_lora(name, options, folder)


if __name__ == "__main__":
    main()
