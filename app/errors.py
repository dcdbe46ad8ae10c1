"""The exception tree of the whole program; every room raises from here and only the HTTP and CLI
rooms translate it.

Each error names the thing, the value and what was expected. Anything else that escapes a room is a
bug of ours.
"""


class LlamaServeError(Exception):
    """Base of every error that this program raises on purpose."""


class ConfigError(LlamaServeError):
    """A flag, an environment variable or a combination of them cannot be honoured."""


class ModelFormatError(LlamaServeError):
    """A model file is damaged, foreign or inconsistent; names the file, the key or tensor, and what
    was expected.
    """


class UnsupportedError(LlamaServeError):
    """A well-formed thing that this program does not implement: an architecture, a type, an
    operation.
    """


class GraphError(LlamaServeError):
    """A compute graph is not legal: a type, a shape, a stride, a bound or a parameter is wrong."""


class OutOfMemoryError(LlamaServeError):
    """A device cannot hold what was asked of it; names the device, the bytes asked and the bytes
    free.
    """


class DeviceLostError(LlamaServeError):
    """A device no longer answers, or answered nonsense; names the device and the cause."""


class RequestError(LlamaServeError):
    """A client's request is wrong; `param` names the field when one is to blame."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextExceededError(RequestError):
    """A prompt does not fit into the context of a slot."""

    def __init__(self, message: str, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(message)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx
