"""The one exception a user's input can cause."""


class BadInput(ValueError):
    """Input that cannot be answered honestly: the message says what was seen, what was expected and what to do."""
