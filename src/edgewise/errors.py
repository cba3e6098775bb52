"""The one exception a user's input can cause."""


class BadInput(ValueError):
    """Input that cannot be answered honestly; the message says what was expected, what came instead and what to do."""
