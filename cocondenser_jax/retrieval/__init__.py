"""Fine-tuning, encoding and search, in PyTorch. Never imports JAX."""
