"""`deepspeed.moe`: expert parallelism, which is not built."""
