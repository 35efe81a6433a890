"""`deepspeed.runtime.sequence_parallel`, which is not built."""
