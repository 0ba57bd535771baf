"""One file per experiment. Every file has a `get_config(argument: str = "")`."""
