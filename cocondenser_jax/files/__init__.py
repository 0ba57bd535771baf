"""Files and processes: atomic writes, locks, run folders, tables, metrics, workers."""
