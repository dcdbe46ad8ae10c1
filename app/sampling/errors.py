"""The one error of this room that is not a wrong request: logits that cannot be sampled."""

from app.errors import LlamaServeError


class SamplingError(LlamaServeError):
    """No token can be chosen: the model produced NaN, or every token is masked."""
