"""Files, folders, locks, the hub, metrics and tables on disk, for all other packages."""
