"""`deepspeed.runtime.constants` and `deepspeed.constants`: names of keys, and defaults, that programs read."""

import datetime
import os

TRAIN_BATCH_SIZE = "train_batch_size"
TRAIN_MICRO_BATCH_SIZE_PER_GPU = "train_micro_batch_size_per_gpu"
GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
TYPE = "type"
STEPS_PER_PRINT = "steps_per_print"
DUMP_STATE = "dump_state"
FP16 = "fp16"
BFLOAT16 = "bf16"
GRADIENT_CLIPPING = "gradient_clipping"
GRADIENT_CLIPPING_DEFAULT = 1.0
LOG_LEVEL = "log_level"
LOG_LEVEL_DEFAULT = None
ROUTE_TRAIN = "train"
ROUTE_EVAL = "eval"
ROUTE_PREDICT = "predict"
ROUTE_ENCODE = "encode"
DATA_PARALLEL_GROUP = "data_parallel_group"
GLOBAL_RANK = "global_rank"

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
default_pg_timeout = datetime.timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "10")))

# Variables of launchers that number hosts.
CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"
LOCAL_RANK = "LOCAL_RANK"

INFERENCE_GENERIC_MODE = "generic"
INFERENCE_SPECIALIZED_MODE = "specialized"
