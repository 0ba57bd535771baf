"""Trains bi-encoders and cross-encoders, in PyTorch. Never imports JAX."""
