"""Our own studies: what no paper printed, measured on the CPUs of docs/results.md."""
