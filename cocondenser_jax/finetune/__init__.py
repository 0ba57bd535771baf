"""Trains bi-encoders, cross-encoders and sentence encoders, in PyTorch. Never imports JAX."""
