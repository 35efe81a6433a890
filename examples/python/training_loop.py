"""A model, a dictionary of settings, a loop: the first program that people write for DeepSpeed.

python -m zerotorch.run -n 2 examples/python/training_loop.py
"""

import json

from pieces import MyLargeTransformer as MyTransformer
from pieces import arguments, batches, criterion

import zerotorch as deepspeed

args = arguments()
with open(args.deepspeed_config) as file:
    ds_config = json.load(file)
data_loader = batches(samples=32, steps=args.steps)
losses = []


def MyLargeTransformer():
    import torch

    torch.manual_seed(1)
    return MyTransformer()


# Define your model as usual
model = MyLargeTransformer()

# Initialize DeepSpeed
model_engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)

# Training loop
for batch in data_loader:
    inputs, labels = batch
    outputs = model_engine(inputs)
    loss = criterion(outputs, labels)

    # DeepSpeed handles the backward pass and gradient sharding
    model_engine.backward(loss)
    model_engine.step()

    losses.append(loss.item())
    if model_engine.global_rank == 0:
        print(f"step {len(losses):3d}  loss {losses[-1]:.4f}  scale {model_engine.loss_scale():g}", flush=True)
