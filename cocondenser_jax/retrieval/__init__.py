"""Encoding, indexing, search and reranking, in PyTorch. Never imports JAX."""
