"""What other libraries need beside DeepSpeed's surface to train on zerotorch. Members import these libraries."""
