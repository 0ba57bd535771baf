"""Whole pipelines, above everything that they join."""
