"""What an engine saves and loads, and DeepSpeed's folders read without it."""
