"""Errors that only the engine raises."""

from app.errors import LlamaServeError


class ContextFullError(LlamaServeError):
    """The shared pool of cells is full, so a running request had to be ended."""


class InputTooLargeError(LlamaServeError):
    """A text to embed does not fit into one micro-batch."""


class EngineUnavailableError(LlamaServeError):
    """The engine is loading, failed or stopped and takes no requests."""


class SlotFileError(LlamaServeError):
    """A slot's file cannot be written."""
