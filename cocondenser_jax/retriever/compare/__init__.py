"""Comparison of models on the user's queries: tables, tests, changes by query, reports."""
