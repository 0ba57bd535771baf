"""The one exception for what a user can cause and mend."""


class UserError(Exception):
    """Bad input. The message is one line: what was wrong and what was expected.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str):
        """Joins the lines of a message, which may quote a file or another library."""
        super().__init__(" ".join(message.splitlines()))
