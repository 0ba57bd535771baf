"""A collection on disk: passages, queries, judgments, runs and answers. NumPy only."""
