"""Runs and judgments in, figures out."""
