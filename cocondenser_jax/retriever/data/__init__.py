"""What is searched, by whom and with what result: passages, queries, judgments, runs, metrics."""
