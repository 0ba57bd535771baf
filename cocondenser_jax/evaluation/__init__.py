"""Runs and judgments in, metrics out."""
