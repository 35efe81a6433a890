#!/usr/bin/env python3
"""Runs programs that others have written for DeepSpeed on zerotorch, and prints their losses beside plain training's.

  scripts/run_callers.py CHECKOUTS [--only NAME ...]     CHECKOUTS: a folder with checkouts of these repositories

      DeepSpeedExamples  github.com/deepspeedai/DeepSpeedExamples     OpenRLHF        github.com/OpenRLHF/OpenRLHF
      axolotl            github.com/axolotl-ai-cloud/axolotl          LLaMA-Factory   github.com/hiyouga/LLaMA-Factory
      alignment-handbook github.com/huggingface/alignment-handbook    open-r1         github.com/huggingface/open-r1
      open-instruct      github.com/allenai/open-instruct             trl             github.com/huggingface/trl

Nothing is fetched: `git clone --depth 1` them; what is not there is left out, with a line. Models are tiny and random,
data is made here, all is on the CPU with two ranks. Each program runs unchanged at ZeRO stages 2 and 3, and once with
tests/callers/plain.py in DeepSpeed's place: data parallelism with torch's AdamW.

Three Pythons, all with zerotorch's torch. zerotorch itself comes from --package.

      --python       transformers 5.15 (OpenRLHF replaces parts of it), accelerate, trl, peft, datasets, torchdata,
                     pylatexenc, pillow, aiohttp
      --python-2025  for open-r1 and alignment-handbook: transformers 4.53, accelerate 1.9, trl 0.19, peft, datasets,
                     math-verify 0.5.2, latex2sympy2_extended, python-dotenv, jieba, langdetect, aiofiles
      --python-2024  for DeepSpeed-Chat and HelloDeepSpeed: transformers 4.46, accelerate 1.1, datasets, sentencepiece,
                     tensorboard, fire, loguru, pytz, sh

Columns: ok (within the tolerance of plain training), refused (NotBuiltError or ConfigError), differs, failed; the
largest relative difference to plain training, and whether stages 2 and 3 printed the same numbers; first and last loss.
What programs print is kept in --logs. Exit status: 1 when anything failed or differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "tests/callers"
RANKS = 2
REPOSITORIES = ("axolotl", "LLaMA-Factory", "open-instruct", "alignment-handbook", "open-r1", "trl")
FILES = ("files", "trained-files")
PYTHONS = {"DeepSpeedExamples": "python_2024", "alignment-handbook": "python_2025", "open-r1": "python_2025"}
PLAIN = 0  # in place of a stage
NUMBER = r"(-?[\d.]+(?:e[-+]?\d+)?|nan|inf)"
REFUSALS = ("NotBuiltError", "ConfigError")


@dataclasses.dataclass
class Run:
    """One program at one stage."""

    folder: pathlib.Path  # its own
    made: pathlib.Path  # models and data
    checkouts: pathlib.Path
    stage: int

    def at(self, *parts: str) -> str:
        return str(self.folder.joinpath(*parts))


@dataclasses.dataclass
class Caller:
    name: str
    checkout: str
    program: Callable[[Run], list[str]]  # script and arguments
    losses: str  # a regular expression with one group, of lines of rank 0
    tolerance: float = 0.03  # relative to plain training, which rounds to bf16 elsewhere
    stages: tuple[int, ...] = (2, 3)
    local_rank: bool = True  # the launcher gives --local_rank
    refused: str = ""  # what the refusal says, where it is by design
    beside_plain: bool = True
    yaml: str = ""  # started by accelerate's launcher, with this file
    needs: tuple[str, ...] = ()  # callers whose folders it reads

    @property
    def python(self) -> str:
        """The option with the libraries of its time."""
        return PYTHONS.get(self.checkout, "python")


# ---- DeepSpeedExamples ----


def hello(run: Run, *more: str) -> list[str]:
    stage = ["--replace", '"stage": 1', f'"stage": {run.stage or 1}', "--replace", '"lr": 1e-4', '"lr": 1e-2']
    program = str(run.checkouts / "DeepSpeedExamples/training/HelloDeepSpeed/train_bert_ds.py")
    sizes = "--num_layers 2 --num_heads 4 --ff_dim 64 --h_dim 32 --dropout 0.0 --batch_size 4 --max_seq_length 64"
    steps = "--log_every 1 --checkpoint_every 4 --dtype bf16"
    tokenizer = ["--tokenizer", str(run.made / "roberta")]
    return [str(HERE / "local_data.py"), str(run.made / "texts.jsonl"), *stage, program, *sizes.split(), *steps.split(),
            *tokenizer, *more]


def hello_train(run: Run) -> list[str]:
    return hello(run, "--num_iterations", "10", "--checkpoint_dir", run.at("runs"))


def hello_resume(run: Run) -> list[str]:
    (folder,) = run.folder.parent.joinpath(f"hello-{run.stage}", "runs").iterdir()
    return hello(run, "--num_iterations", "16", "--load_checkpoint_dir", str(folder))


RANDOM_PARTS = (
    ("model/reward_model.py", "        self.config = base"),
    ("module/lora.py", "        nn.init.kaiming_uniform_("),
)


def chat(step: str, arguments: str, dtype: str = "bf16") -> Callable[[Run], list[str]]:
    def program(run: Run) -> list[str]:
        folder = run.made / "DeepSpeed-Chat"
        if not folder.exists():
            source = run.checkouts / "DeepSpeedExamples/applications/DeepSpeed-Chat"
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("assets", "training_log_output"))
            for name, line in RANDOM_PARTS:  # the same at every stage
                path = folder / "dschat/utils" / name
                path.write_text(path.read_text().replace(line, f"        torch.manual_seed(7)\n{line}", 1))
            (folder / "data").mkdir()
            lines = (run.made / "pairs.jsonl").read_text().splitlines()
            for name, part in (("train", lines[16:]), ("eval", lines[:16])):
                (folder / "data" / f"{name}.json").write_text("\n".join(part) + "\n")
        before = run.folder.parent
        text = arguments.format(
            opt=run.made / "opt", sft=before / f"chat-sft-{PLAIN}/out", rm=before / f"chat-rm-{PLAIN}/out",
            stage=run.stage,
        )
        data = ["--data_path", "local/jsonfile", "--data_output_path", run.at("data"), "--output_dir", run.at("out")]
        common = ["--seed", "7", "--dtype", dtype, *data]
        return [str(folder / f"training/{step}/main.py"), *text.split(), *common]

    return program


TUNE = "--model_name_or_path {opt} --zero_stage {stage} --max_seq_len 128 --num_train_epochs 2 --learning_rate 1e-2 " \
       "--per_device_train_batch_size 2 --per_device_eval_batch_size 2 --gradient_accumulation_steps 2 "
LORA = "--lora_dim 4 --lora_module_name decoder.layers. --only_optimize_lora --gradient_checkpointing "
SFT = TUNE + "--compute_fp32_loss --print_loss "
RM = TUNE + "--num_padding_at_beginning 0 --weight_decay 0.1 --compute_fp32_loss "
DPO = TUNE + "--beta 0.1 --compute_fp32_loss --print_loss "
PPO = "--actor_model_name_or_path {sft} --critic_model_name_or_path {rm} --actor_zero_stage {stage} " \
      "--critic_zero_stage {stage} --num_padding_at_beginning 0 --per_device_generation_batch_size 2 " \
      "--per_device_training_batch_size 2 --generation_batches 1 --ppo_epochs 1 --max_answer_seq_len 12 " \
      "--max_prompt_seq_len 96 --actor_learning_rate 1e-3 --critic_learning_rate 1e-3 --num_warmup_steps 2 " \
      "--compute_fp32_loss --enable_test_mode --test_stop_step 6 "
PPO_LORA = "--actor_lora_dim 4 --actor_lora_module_name decoder.layers. --actor_gradient_checkpointing --enable_ema "
RANK_0 = r"Rank: 0, loss = " + NUMBER
STEP_3 = r"(?:Actor Loss: |Critic Loss: |Average reward score: )" + NUMBER


# ---- OpenRLHF ----


def openrlhf(module: str, arguments: str) -> Callable[[Run], list[str]]:
    common = "--ds.attn_implementation eager --ds.param_dtype bf16 --train.micro_batch_size 2 --train.batch_size 8 " \
             "--train.max_epochs 1 --adam.lr 1e-2 --adam.weight_decay 0.1 --data.max_len 96"

    def program(run: Run) -> list[str]:
        model = ["--model.model_name_or_path", str(run.made / "llama"), "--data.dataset", str(run.made / "pairs.jsonl")]
        # DeepSpeed's own checkpoints at a step, and the weights in Hugging Face's format at the end.
        folders = ["--ckpt.output_dir", run.at("out"), "--ckpt.path", run.at("checkpoints"), "--ckpt.save_steps", "4"]
        stage = ["--ds.zero_stage", str(run.stage or 2)]
        start = [str(HERE / "without_gpu.py"), str(run.checkouts / "OpenRLHF"), f"openrlhf.cli.{module}"]
        return [*start, *common.split(), *arguments.format(made=run.made).split(), *model, *folders, *stage]

    return program


def openrlhf_states(run: Run) -> list[str]:
    start = [str(HERE / "without_gpu.py"), str(run.checkouts / "OpenRLHF"), str(HERE / "openrlhf_states.py")]
    return [*start, str(run.made / "llama"), str(run.stage or 2), str(run.folder)]


def metric(name: str) -> str:
    return rf'metrics .*"{name}": {NUMBER}'


# ---- programs on Trainer, under accelerate's launcher ----


def on_trainer(script: str, arguments: str) -> Callable[[Run], list[str]]:
    common = "--model_name_or_path {made}/llama --output_dir {out} --max_steps 6 --per_device_train_batch_size 2 " \
             "--gradient_accumulation_steps 2 --learning_rate 1e-2 --lr_scheduler_type linear --warmup_steps 1 " \
             "--logging_steps 1 --report_to none --bf16 true --seed 9 "

    def program(run: Run) -> list[str]:
        text = (common + arguments).format(made=run.made, out=run.at("out"))
        cpu = ["--use_cpu", "true"] if run.stage == PLAIN else []
        return [str(run.checkouts / script), *text.split(), *cpu]

    return program


FP32 = "--dataset_name {made}/texts --bf16 false --gradient_accumulation_steps 1 "
LOGGED = r"'(?:loss|grad_norm)': '?" + NUMBER

CALLERS = [
    Caller("hello", "DeepSpeedExamples", hello_train, r"Loss: " + NUMBER),
    Caller("hello-resume", "DeepSpeedExamples", hello_resume, r"Loss: " + NUMBER, beside_plain=False, needs=("hello",)),
    Caller("chat-sft", "DeepSpeedExamples", chat("step1_supervised_finetuning", SFT), RANK_0),
    Caller("chat-sft-lora", "DeepSpeedExamples", chat("step1_supervised_finetuning", SFT + LORA), RANK_0),
    Caller("chat-sft-offload", "DeepSpeedExamples", chat("step1_supervised_finetuning", SFT + "--offload"), RANK_0),
    Caller("chat-rm", "DeepSpeedExamples", chat("step2_reward_model_finetuning", RM),
           r"(?:with loss |_scores \(\w+ is better\) : )" + NUMBER, tolerance=0.1),
    Caller("chat-dpo", "DeepSpeedExamples", chat("step2_dpo_finetuning", DPO), RANK_0, tolerance=0.1),
    Caller("chat-ppo", "DeepSpeedExamples", chat("step3_rlhf_finetuning", PPO), STEP_3, tolerance=0.1,
           needs=("chat-sft", "chat-rm")),
    Caller("chat-ppo-lora-ema", "DeepSpeedExamples", chat("step3_rlhf_finetuning", PPO + PPO_LORA), STEP_3,
           tolerance=0.1, needs=("chat-sft", "chat-rm")),
    Caller("chat-ppo-hybrid", "DeepSpeedExamples", chat("step3_rlhf_finetuning", PPO + "--enable_hybrid_engine"),
           STEP_3, refused="hybrid_engine", needs=("chat-sft", "chat-rm")),
    Caller("openrlhf-sft", "OpenRLHF", openrlhf("train_sft", "--data.input_key prompt --data.output_key chosen"),
           metric("gpt_loss")),
    Caller("openrlhf-sft-lora", "OpenRLHF",
           openrlhf("train_sft", "--data.input_key prompt --data.output_key chosen --ds.lora.rank 4 "
                    "--model.gradient_checkpointing_enable"), metric("gpt_loss")),
    Caller("openrlhf-rm", "OpenRLHF",
           openrlhf("train_rm", "--data.prompt_key prompt --adam.lr 1e-3 --eval.dataset {made}/pairs.jsonl"),
           metric("loss"), tolerance=0.1),
    Caller("openrlhf-dpo", "OpenRLHF", openrlhf("train_dpo", "--data.prompt_key prompt"), metric("loss")),
    Caller("openrlhf-states", "OpenRLHF", openrlhf_states, metric("value"), tolerance=0.1),
    Caller("trl-sft", "trl", on_trainer("trl/trl/scripts/sft.py", "--dataset_name {made}/texts --max_length 64"),
           LOGGED, yaml="trl/trl/accelerate_configs/zero{stage}.yaml"),
    Caller("accelerate-defaults", "trl", on_trainer("trl/trl/scripts/sft.py", FP32 + "--max_length 64"), LOGGED,
           tolerance=1e-5, stages=(2,), yaml=str(HERE / "accelerate_defaults.yaml")),
    Caller("trl-dpo", "trl", on_trainer("trl/trl/scripts/dpo.py", "--dataset_name {made}/pairs --max_length 96"),
           LOGGED, yaml="trl/trl/accelerate_configs/zero{stage}.yaml"),
    Caller("trl-dpo-precomputed", "trl",
           on_trainer("trl/trl/scripts/dpo.py",
                      "--dataset_name {made}/pairs --max_length 96 --precompute_ref_log_probs true"),
           LOGGED, yaml="trl/trl/accelerate_configs/zero{stage}.yaml"),
    Caller("trl-reward", "trl", on_trainer("trl/trl/scripts/reward.py", "--dataset_name {made}/pairs --max_length 96"),
           LOGGED, yaml="trl/examples/accelerate_configs/deepspeed_zero{stage}.yaml"),
    Caller("trl-grpo", "trl",
           on_trainer("trl/trl/scripts/grpo.py", "--dataset_name {made}/prompts --reward_funcs rewards.length "
                      "--num_generations 2 --max_completion_length 12"),
           LOGGED, yaml="trl/trl/accelerate_configs/zero{stage}.yaml"),
    Caller("handbook-sft", "alignment-handbook",
           on_trainer("alignment-handbook/scripts/sft.py", "--dataset_name {made}/conversations --max_length 96"),
           LOGGED, stages=(3,), yaml="alignment-handbook/recipes/accelerate_configs/zero{stage}.yaml"),
    Caller("open-r1-sft", "open-r1",
           on_trainer("open-r1/src/open_r1/sft.py", "--dataset_name {made}/conversations --max_length 96"), LOGGED,
           yaml="open-r1/recipes/accelerate_configs/zero{stage}.yaml"),
]


# ---- running ----


def command(options: argparse.Namespace, caller: Caller, run: Run) -> list[str]:
    python = str(getattr(options, caller.python))
    program = caller.program(run)
    if caller.yaml and run.stage != PLAIN:
        # As `ZEROTORCH_AS_DEEPSPEED=1 accelerate launch` with an installed package.
        yaml = str(run.checkouts / caller.yaml.format(stage=run.stage))
        start = [python, "-m", "zerotorch.run", "-m", "accelerate.commands.launch", "--config_file", yaml]
        start += ["--num_processes", str(RANKS), "--main_process_port", str(free_port())]
        return [*start, "--module", "zerotorch.run", *program]
    if run.stage == PLAIN:
        start = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        if caller.yaml:  # these are Trainer's, which has data parallelism
            return [*start, *program]
        local_rank = ["--local-rank-argument"] if caller.local_rank else []
        return [*start, str(HERE / "plain.py"), *local_rank, *program]
    local_rank = [] if caller.local_rank else ["--no_local_rank"]
    return [python, "-m", "zerotorch.launcher.runner", "--num_gpus", str(RANKS), *local_rank, *program]


def free_port() -> int:
    """Where ranks meet: accelerate of 2025 waits for ever with port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(options: argparse.Namespace, run: Run) -> dict[str, str]:
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    paths = [str(run.made), str(run.made / "DeepSpeed-Chat")]
    paths += [str(run.checkouts / name / "src") for name in ("alignment-handbook", "open-r1")]
    if run.stage != PLAIN:
        paths.insert(0, str(options.package))
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "ZERO_LOG_LEVEL": "error",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": run.at("datasets"),
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(run.folder),
    }
    return {**{name: value for name, value in os.environ.items() if name not in launcher}, **ours}


def end(process: subprocess.Popen[str]) -> None:
    for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(wait_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def output_of(options: argparse.Namespace, caller: Caller, run: Run) -> tuple[int | None, str]:
    """Exit status, None for one that ran into its limit, and what it printed."""
    run.folder.mkdir()
    with open(run.folder / "output", "w+") as output:
        process = subprocess.Popen(
            command(options, caller, run), cwd=run.folder, env=environment(options, run), stdout=output, stderr=output,
            start_new_session=True, text=True,
        )
        status: int | None = None
        try:
            status = process.wait(options.limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process)  # with ranks that are left
    return status, (run.folder / "output").read_text(errors="replace")


def losses_of(caller: Caller, text: str) -> list[float]:
    return [float(found) for found in re.findall(caller.losses, text)]


def difference(mine: list[float], plain: list[float]) -> float:
    """The largest, relative to the number and to the mean of all: some of them pass through 0."""
    if len(mine) != len(plain) or not mine or not all(abs(value) < float("inf") for value in mine):
        return float("inf")
    mean = sum(map(abs, plain)) / len(plain)
    return max(abs(a - b) / max(abs(b), mean, 1e-6) for a, b in zip(mine, plain))


def last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if re.search(r"(Error|Exception)\b.*:|: error: |unrecognized", line)]
    lines = [line for line in lines if "ChildFailedError" not in line and "SignalException" not in line] or lines
    return (lines or text.splitlines() or ["no output"])[-1].strip()[:160]


def show(name: str, stage: str, result: str, numbers: str, note: str = "") -> None:
    print(f"{name:20} {stage:>5} {RANKS:>5}  {result:8} {numbers:34} {note}".rstrip(), flush=True)


def run_caller(options: argparse.Namespace, caller: Caller, folder: pathlib.Path) -> list[dict]:
    """A row for each stage, printed as it comes."""
    rows: list[dict] = []
    plain: list[float] = []
    for stage in ((PLAIN,) if caller.beside_plain and not caller.refused else ()) + caller.stages:
        run = Run(folder / f"{caller.name}-{stage}", folder / "made", options.checkouts.resolve(), stage)
        status, text = output_of(options, caller, run)
        losses = losses_of(caller, text)
        row = {"caller": caller.name, "stage": stage, "ranks": RANKS, "losses": losses, "note": ""}
        numbers = f"{len(losses)}: {losses[0]:.4f} ... {losses[-1]:.4f}" if losses else ""
        if status == 0 and losses and stage == PLAIN:
            row["result"], plain = "ok", losses
        elif status == 0 and losses:
            same = [before for before in rows if before["stage"] not in (PLAIN, stage)]
            row["note"] = "" if not same else ", as stage 2" if same[0]["losses"] == losses else ", not as stage 2"
            row["difference"] = difference(losses, plain) if plain else 0.0
            row["result"] = "ok" if row["difference"] <= caller.tolerance else "differs"
            row["note"] = (f"{row['difference']:.1e} from plain" if plain else "nothing to compare") + row["note"]
        elif caller.refused and caller.refused in text and any(kind in text for kind in REFUSALS):
            row["result"], row["note"] = "refused", last_error(text)
        else:
            row["result"] = "failed"
            row["note"] = f"ended after {options.limit:g} s" if status is None else last_error(text)
        if options.logs is not None:
            options.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.folder / "output", options.logs / f"{caller.name}-{stage}.log")
        show(caller.name, str(stage or "plain"), row["result"], numbers, row["note"])
        rows.append(row)
    return rows


# ---- files of configurations ----


def lines_of(options: argparse.Namespace, folder: pathlib.Path, name: str, arguments: list[str]) -> list[dict]:
    """What a script of tests/callers prints, a dictionary on a line."""
    run = Run(folder / name, folder / "made", options.checkouts.resolve(), 2)
    run.folder.mkdir()
    log = run.folder / "output"
    with open(log, "w") as output:
        done = subprocess.run(
            [str(options.python), *arguments], cwd=run.folder, env=environment(options, run), stdout=subprocess.PIPE,
            stderr=output, text=True, timeout=options.limit * 4,
        )
    if done.returncode != 0:
        print(f"{name}: {last_error(log.read_text())}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check_files(options: argparse.Namespace, folder: pathlib.Path) -> list[dict]:
    """Every file of DeepSpeed's JSON in the checkouts, as a configuration alone."""
    there = [name for name in (*REPOSITORIES, "DeepSpeedExamples") if (options.checkouts / name).exists()]
    rows = []
    for found in lines_of(options, folder, "files", [str(HERE / "config_files.py"), str(options.checkouts), *there]):
        result = "ok" if not found["wrong"] else "refused"
        rows.append({"caller": found["file"], "stage": found["stage"], "result": result, "note": found["wrong"]})
        print(f"  {result:8} {found['file']}  {found['wrong']}".rstrip(), flush=True)
    return rows


def train_files(options: argparse.Namespace, folder: pathlib.Path) -> list[dict]:
    """The files of programs on Trainer, through Trainer on all ranks."""
    found = []
    for name in REPOSITORIES:
        for path in sorted((options.checkouts / name).rglob("*")):
            if path.suffix in (".json", ".conf") and path.is_file():
                text = path.read_text(errors="replace")
                if "zero_optimization" in text and '"auto"' in text:
                    found.append(str(path.resolve()))
    command = ["-m", "zerotorch.run", "-n", str(RANKS), str(HERE / "trainer_files.py"), *found]
    rows = []
    for one in lines_of(options, folder, "trained-files", command) if found else []:
        row = {"caller": one["file"], "ranks": RANKS, "losses": one.get("losses", []), "note": one.get("error", "")}
        numbers = ""
        if "error" in one:
            row["result"] = "refused" if row["note"].startswith(REFUSALS) else "failed"
        else:
            row["difference"] = difference(one["losses"], one["plain"])
            row["result"] = "ok" if row["difference"] <= (0.03 if one["half"] else 2e-5) else "differs"
            row["note"] = f"{row['difference']:.1e} from plain"
            numbers = f"{one['losses'][0]:.4f} ... {one['losses'][-1]:.4f}"
        name = str(pathlib.Path(one["file"]).relative_to(options.checkouts.resolve()))
        print(f"  {row['result']:8} {name:64} {numbers:20} {row['note'][:300]}", flush=True)
        rows.append(row)
    if len(rows) != len(found):
        rows.append({"caller": "trained files", "result": "failed", "note": f"{len(rows)} of {len(found)} were run"})
        print(f"  failed   {rows[-1]['note']}")
    return rows


def chosen(options: argparse.Namespace) -> list[Caller]:
    """Those that are asked for, and before them those whose folders they read."""
    names = {caller.name: caller for caller in CALLERS}
    for name in options.only:
        if not any(name in known for known in (*names, *FILES)):
            sys.exit(f"run_callers: there is no caller {name}; there are {', '.join((*names, *FILES))}")
    wanted = {name for name in names if not options.only or any(part in name for part in options.only)}
    wanted |= {need for name in wanted for need in names[name].needs}
    return [caller for caller in CALLERS if caller.name in wanted]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="callers with one of these in the name")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/libraries/bin/python")
    parser.add_argument("--python-2025", type=pathlib.Path, default=ROOT / "build/libraries-2025/bin/python")
    parser.add_argument("--python-2024", type=pathlib.Path, default=ROOT / "build/libraries-2024/bin/python")
    parser.add_argument("--package", type=pathlib.Path, default=ROOT / "build/release/python")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a program (default: %(default)g)")
    parser.add_argument("--logs", type=pathlib.Path, help="keep what programs print there")
    parser.add_argument("--json", type=pathlib.Path, help="write the table there, with all losses")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that programs end with this one
    rows: list[dict] = []
    print(f"{'caller':20} {'stage':>5} {'ranks':>5}  {'result':8} {'losses':34} beside plain training")
    with tempfile.TemporaryDirectory(prefix="zerotorch-callers-") as name:
        folder = pathlib.Path(name)
        made = False
        for caller in chosen(options):
            python = getattr(options, caller.python)
            missing = [path for path in (options.checkouts / caller.checkout, python) if not path.exists()]
            if missing:
                show(caller.name, "-", "left out", "", f"there is no {missing[0]}")
                continue
            if not made:
                command_line = [str(python), str(HERE / "fixtures.py"), str(folder / "made")]
                subprocess.run(command_line, check=True, stderr=subprocess.DEVNULL)
                made = True
            rows += run_caller(options, caller, folder)
        for name, of_files in zip(FILES, (check_files, train_files)):
            if not options.only or any(part in name for part in options.only):
                print(f"{name}: {(of_files.__doc__ or '').strip()}", flush=True)
                rows += of_files(options, folder)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [row for row in rows if row["result"] in ("failed", "differs")]
    print(f"{len(rows)} runs, {len(wrong)} of them failed or differ")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
