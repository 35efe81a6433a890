"""transformers' Trainer with each of DeepSpeed's JSON files, beside a plain Trainer, for scripts/run_callers.py.

  python -m zerotorch.run -n 2 trainer_files.py FILE...     rank 0 prints a line of JSON for each file

Files whose bf16 is on train in bf16, others in fp32. A file that asks for a compiled module gets one.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import hf_trainer as hf
import torch


def losses(folder: str, pretrained: str, settings: Any, half: bool, filled: Any = None) -> tuple[list[float], Any]:
    """And the configuration as Trainer has filled it in. The plain run takes the file's optimizer and schedule: the former
    decays all weights alike, Trainer's own does not."""
    from transformers import AutoModelForCausalLM
    from zerotorch.runtime.lr_schedules import WarmupDecayLR

    args = hf.arguments(folder, settings, bf16=half, **({} if settings else {"use_cpu": True}))
    trainer = hf.make_trainer(AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32), args)
    if filled and "optimizer" in filled:
        assert filled["optimizer"]["type"] == "AdamW"
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), **filled["optimizer"]["params"])
    if filled and "scheduler" in filled:
        assert filled["scheduler"]["type"] == "WarmupDecayLR"
        trainer.lr_scheduler = WarmupDecayLR(trainer.optimizer, **filled["scheduler"]["params"])
    trainer.train()
    if settings:
        filled = trainer.model_wrapped.config
        trainer.model_wrapped.destroy()
    return [entry["loss"] for entry in hf.logged(trainer, "loss")], filled


def run(file: str) -> dict[str, Any]:
    config = json.loads(pathlib.Path(file).read_text())
    half = config.get("bf16", {}).get("enabled") is True
    with hf.libraries(), hf.shared_folder() as folder:
        pretrained = hf.save_model(folder)
        try:
            mine, filled = losses(folder, pretrained, file, half)
        except Exception as error:  # on all ranks: it comes of the file
            return {"file": file, "error": f"{type(error).__name__}: {error}"}
        with hf.libraries(), hf.alone():
            plain, _ = losses(folder, pretrained, None, half, filled)
    return {"file": file, "half": half, "losses": mine, "plain": plain}


def main() -> None:
    for file in sys.argv[1:]:
        result = run(file)
        if torch.distributed.get_rank() == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
