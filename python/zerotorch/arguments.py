"""Options that DeepSpeed's programs take."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds `--deepspeed` and `--deepspeed_config FILE`, and their old names with deepscale, to the parser. Local."""
    group = parser.add_argument_group("DeepSpeed", "Sharded training")
    for name in ("deepspeed", "deepscale"):
        group.add_argument(f"--{name}", action="store_true", help="for the program; zerotorch does not look at it")
        group.add_argument(f"--{name}_config", metavar="FILE", default=None, help="DeepSpeed JSON")
    return parser
