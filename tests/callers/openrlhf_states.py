"""The policy of OpenRLHF's reinforcement learning without its workers: its strategy, its actor with a moving average,
its functions that take states off the accelerator while others generate. Run by without_gpu.py.

  python without_gpu.py CHECKOUT openrlhf_states.py MODEL STAGE FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from openrlhf.models import Actor, PolicyLoss
from openrlhf.utils import get_strategy, get_tokenizer
from openrlhf.utils.config import hierarchize
from openrlhf.utils.deepspeed.deepspeed_utils import offload_deepspeed_states, reload_deepspeed_states

UPDATES = 4


def make_args(stage: int) -> Any:
    values = {
        "local_rank": -1,
        "max_norm": 1.0,
        "ds.param_dtype": "bf16",
        "ds.zero_stage": stage,
        "ds.tensor_parallel_size": 1,
        "ds.adam_offload": False,
        "ds.zpg": 1,
        "train.micro_batch_size": 2,
        "train.batch_size": 8,
        "train.dynamic_batch_enable": False,
    }
    return hierarchize(argparse.Namespace(**values))


def make_actor(model: str, ds_config: dict[str, Any]) -> Any:
    return Actor(model, attn_implementation="eager", param_dtype="bf16", ds_config=ds_config)


def log_probs(actor: Any, sequences: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """As in PolicyModelActor.forward."""
    actor.eval()
    with torch.no_grad():
        values = actor(sequences, actions, torch.ones_like(sequences))
    actor.train()
    return values.to("cpu")


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank=")]
    model, stage, folder = arguments
    strategy = get_strategy(make_args(int(stage)))
    strategy.setup_distributed()
    actor = make_actor(model, strategy.get_ds_train_config())
    ema = make_actor(model, strategy.get_ds_eval_config(offload=True))
    tokenizer = get_tokenizer(model, actor.model, "left", strategy)
    adam = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    cfg = {"optim": "adam", "adam": adam, "max_norm": 1.0, "scheduler_steps": UPDATES}
    actor, optimizer, scheduler = strategy.prepare((actor, cfg))
    ema._offload = True
    ema = strategy.prepare(ema)
    ema.eval()
    offload_deepspeed_states(actor.model)

    loss_of = PolicyLoss()
    generator = torch.Generator().manual_seed(strategy.get_rank())
    for update in range(UPDATES):
        sequences = torch.randint(3, 300, (2, 12), generator=generator)
        actions = torch.ones(2, 6, dtype=torch.long)
        before = log_probs(actor, sequences, actions)
        advantages = torch.randn(2, 6, generator=generator)
        reload_deepspeed_states(actor.model)
        for _ in range(strategy.accumulated_gradient):
            now = actor(sequences, actions, attention_mask=torch.ones_like(sequences))
            loss = loss_of(now, before, advantages, action_mask=actions)[0] - 0.1 * now.mean()
            strategy.backward(loss, actor, optimizer)
            strategy.optimizer_step(optimizer, actor, scheduler)
            strategy.moving_average(actor, ema, beta=0.9)
        offload_deepspeed_states(actor.model)
        values = [loss.item(), strategy.get_grad_norm(actor), log_probs(ema, sequences, actions).sum().item()]
        values = [strategy.all_reduce(value) for value in values]
        if strategy.is_rank_0():
            print("".join(f"metrics {json.dumps({'value': value})}\n" for value in values), flush=True)
        ema.eval()
    reload_deepspeed_states(actor.model)
    strategy.save_ckpt(actor.model, f"{folder}/checkpoints", "global_step4", client_state={"update": UPDATES})
    strategy.save_model(ema, tokenizer, f"{folder}/average")
    if stage == "3":  # the baseline has no checkpoints
        where, states = strategy.load_ckpt(actor.model, f"{folder}/checkpoints", "global_step4")
        assert where is not None and states["update"] == UPDATES, (where, states)


if __name__ == "__main__":
    main()
