"""`deepspeed.constants`."""

import datetime
import os

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
default_pg_timeout = datetime.timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "10")))

# Variables of launchers that number hosts.
CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"
LOCAL_RANK = "LOCAL_RANK"

INFERENCE_GENERIC_MODE = "generic"
INFERENCE_SPECIALIZED_MODE = "specialized"
