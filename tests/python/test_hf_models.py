"""Models of transformers at stage 3 on two ranks: some updates of plain torch."""

from __future__ import annotations

from typing import Any

import hf_trainer as hf
import pytest
import torch
from ranks import run
from support import needs
from torch import nn

needs("transformers", "accelerate")

UPDATES = 3
PER_UPDATE = 4  # micro-batches, over all ranks
LENGTH = 6


class Experts(nn.Module):
    """Experts as modules of their own, most of which a rank does not use."""

    supports_gradient_checkpointing = False

    def __init__(self, count: int = 6, dim: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(hf.VOCAB, dim)
        self.router = nn.Linear(dim, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 12), nn.SiLU(), nn.Linear(12, dim)) for _ in range(count)
        )
        self.head = nn.Linear(dim, hf.VOCAB)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        from types import SimpleNamespace

        x = self.embedding(input_ids).mean(1)
        weights, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows = (chosen == number).nonzero().flatten()
            y = y.index_add(0, rows, self.experts[number](x[rows]) * weights[rows, None])
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.head(x + y), labels[:, -1]))


def tokens(generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, hf.VOCAB, (2, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def images(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(2, 3, 8, 8, generator=generator),
        "labels": torch.randint(2, (2,), generator=generator),
    }


def sounds(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "input_values": torch.randn(2, 400, generator=generator),
        "labels": torch.randint(2, (2,), generator=generator),
    }


def build(kind: str) -> Any:
    import transformers as tf

    small: dict[str, Any] = {
        "vocab_size": hf.VOCAB,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    of_decoder = {key: value for key, value in small.items() if "dropout" not in key}
    torch.manual_seed(3)
    if kind == "gpt2":
        config: Any = tf.GPT2Config(
            vocab_size=hf.VOCAB,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=2,
        )
        return tf.AutoModelForCausalLM.from_config(config)
    if kind == "llama":
        return tf.AutoModelForCausalLM.from_config(hf.llama_config())
    if kind == "qwen3 moe":
        config = tf.Qwen3MoeConfig(
            **of_decoder,
            num_key_value_heads=1,
            head_dim=8,
            moe_intermediate_size=8,
            num_experts=6,
            num_experts_per_tok=1,
            decoder_sparse_step=1,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        return tf.AutoModelForCausalLM.from_config(config)
    if kind == "t5":
        config = tf.T5Config(
            vocab_size=hf.VOCAB,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=2,
        )
        return tf.AutoModelForSeq2SeqLM.from_config(config)
    if kind == "bert":
        return tf.AutoModelForMaskedLM.from_config(tf.BertConfig(**small, max_position_embeddings=32))
    if kind == "vit":
        return tf.AutoModelForImageClassification.from_config(
            tf.ViTConfig(
                **{key: value for key, value in small.items() if key != "vocab_size"}, image_size=8, patch_size=4
            )
        )
    if kind == "wav2vec2":
        config = tf.Wav2Vec2Config(
            **small,
            conv_dim=(8, 8),
            conv_kernel=(10, 3),
            conv_stride=(5, 2),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            apply_spec_augment=False,
            layerdrop=0.0,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
        )
        return tf.AutoModelForAudioClassification.from_config(config)
    return Experts()


KEY_BIASES = ("k_proj.bias", "key.bias")
INPUTS = {"vit": images, "wav2vec2": sounds}
KINDS = ["gpt2", "llama", "qwen3 moe", "experts", "t5", "bert", "vit", "wav2vec2"]


def under_zero_3(plain: Any, config: dict[str, Any]) -> Any:
    """The same model from a file, in parts from the beginning."""
    from transformers.integrations import HfDeepSpeedConfig

    with hf.shared_folder() as folder:
        if torch.distributed.get_rank() == 0:
            plain.save_pretrained(folder)
        torch.distributed.barrier()
        keep = HfDeepSpeedConfig(config)
        model = type(plain).from_pretrained(folder)
        del keep
        return model


def train(kind: str, checkpointing: str, built: bool, store: str) -> dict[str, Any]:
    with hf.libraries():
        import zerotorch

        config = {
            "train_batch_size": 2 * PER_UPDATE,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3},
            "zerotorch": {"store": store},
        }
        plain = build(kind)
        model = under_zero_3(plain, config) if built else build(kind)
        assert built == any(hasattr(p, "ds_id") for p in model.parameters())
        for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(p, q), name
        for one in (model, plain):
            if checkpointing != "none":
                one.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
            one.train()
        engine, _, _, _ = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)
        optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
        generator = torch.Generator().manual_seed(17)
        losses, wanted = [], []
        for _ in range(UPDATES):
            for i in range(PER_UPDATE):
                batch = INPUTS.get(kind, tokens)(generator)
                loss = plain(**batch).loss
                (loss / PER_UPDATE).backward()
                if i % engine.world_size == engine.global_rank:
                    wanted.append(loss.item())
                    loss = engine(**batch).loss
                    engine.backward(loss)
                    engine.step()
                    losses.append(loss.item())
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        # A key's bias has no gradient but a rounding error's, which Adam makes a whole step of.
        trained = {n: p for n, p in plain.named_parameters() if p.requires_grad and not n.endswith(KEY_BIASES)}
        difference = {
            name: ((engine._core.full_weight(name) - p).norm() / (p.norm() + 1e-3)).item()
            for name, p in trained.items()
        }
        engine.destroy()
        return {"losses": losses, "wanted": wanted, "difference": max(difference.items(), key=lambda item: item[1])}


def check(kind: str, *args: Any) -> None:
    for one in run(2, train, kind, *args):
        assert one["losses"] == pytest.approx(one["wanted"], rel=1e-4)
        assert one["difference"][1] < 1e-3, one["difference"]


@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "not reentrant"])
@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_plain_torch(kind: str, checkpointing: str) -> None:
    if kind == "experts" and checkpointing != "none":
        pytest.skip("it is no model of transformers")
    check(kind, checkpointing, False, "auto")


@pytest.mark.parametrize("store", ["auto", "copying"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "experts"])
def test_trains_when_built_under_zero_3(kind: str, store: str) -> None:
    check(kind, "none", True, store)
