"""`deepspeed.compression`, which is not built."""
