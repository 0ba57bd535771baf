"""Encodes, indexes, searches and reranks in PyTorch; never imports JAX."""
