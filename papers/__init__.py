"""One file per paper: its tables, and in recipes.yaml the commands that make their figures."""
