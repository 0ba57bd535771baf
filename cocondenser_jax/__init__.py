"""Condenser and coCondenser: pre-training for dense retrieval in JAX, retrieval in PyTorch."""

__version__ = "0.1.0"
