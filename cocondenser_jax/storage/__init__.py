"""What lies under everything: files, folders, locks, the hub, metrics and tables on disk."""
