"""A collection on disk: passages, queries, judgments and runs. NumPy only."""
