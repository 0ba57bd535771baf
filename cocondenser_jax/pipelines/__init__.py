"""Pipelines of several steps, built from all other packages."""
