"""The one exception for what a user can cause and mend."""


class UserError(Exception):
    """Bad input. The message is one line: what was wrong and what was expected.

    The command line prints it without a traceback and exits with status 2.
    """
