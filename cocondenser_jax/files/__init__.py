"""Files and processes: whole-or-absent, locks, folders that grow, tables, metrics, workers."""
