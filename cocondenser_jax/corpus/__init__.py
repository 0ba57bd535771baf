"""Text in, batches out: sources, spans, the token store, masking and batches."""
