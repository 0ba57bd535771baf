"""Encodes, indexes, searches and reranks, in PyTorch. Never imports JAX."""
