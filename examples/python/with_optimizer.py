"""A client's optimizer, a JSON file, batches sent to ``model_engine.local_rank``: the second program of every tutorial.

python -m zerotorch.run -n 2 examples/python/with_optimizer.py
"""

import torch
from pieces import MyLargeTransformer, WithLoss, arguments, batches

import zerotorch as deepspeed

args = arguments()
torch.manual_seed(1)
model = WithLoss(MyLargeTransformer())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataloader = ({"input_ids": inputs, "labels": labels} for inputs, labels in batches(samples=32, steps=args.steps))

# Initialize DeepSpeed
model_engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    optimizer=optimizer,
    model_parameters=model.parameters(),
    config_params=args.deepspeed_config,  # Path to JSON config file
)

for step, batch in enumerate(dataloader):
    # Move batch to device managed by DeepSpeed
    batch = {k: v.to(model_engine.local_rank) for k, v in batch.items()}

    # Forward pass
    outputs = model_engine(**batch)
    loss = outputs.loss

    # Backward pass managed by DeepSpeed
    model_engine.backward(loss)

    # Optimizer step managed by DeepSpeed
    model_engine.step()

    # Logging, checkpointing, etc.
    if model_engine.global_rank == 0:
        print(f"step {step + 1:3d}  loss {loss.item():.4f}  scale {model_engine.loss_scale():g}", flush=True)
