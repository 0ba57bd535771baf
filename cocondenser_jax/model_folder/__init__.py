"""A published model in a folder: what its files say, and where they come from."""
