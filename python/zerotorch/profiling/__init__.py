"""`deepspeed.profiling`. The engine counts FLOPs by the `flops_profiler` section of its configuration."""
