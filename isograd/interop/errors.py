"""What an export refuses, in one line."""


class ExportError(ValueError):
    """A model that the other format cannot hold, or a folder that cannot be written; the message says what to do."""
