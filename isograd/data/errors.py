"""What goes wrong with data, in one line each."""


class DataError(ValueError):
    """Bad input: the message names the file, the line where there is one, and what was expected."""
