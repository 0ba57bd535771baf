"""Our own studies, beyond the papers' tables, measured on the CPUs of docs/results.md."""
