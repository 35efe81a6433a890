"""`deepspeed.monitor`: figures of a run in files."""
