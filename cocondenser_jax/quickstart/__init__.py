"""The whole pipeline in one command, on text that every machine has."""
