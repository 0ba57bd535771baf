"""Data of retrieval: passages, queries, judgments, runs, metrics and tests of significance."""
