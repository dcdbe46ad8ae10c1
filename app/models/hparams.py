"""The hyper-parameters that all architectures share, settled once from GGUF metadata.

Per-layer values are tuples of length `n_layer`. Nothing is defaulted that would change results
silently: an architecture reads each key through `app.models.metadata`, which raises
ModelFormatError when a required one is absent.
"""

from dataclasses import dataclass
from enum import IntEnum

from app.ggml.op_params import RopeParams


class Pooling(IntEnum):
    """How the hidden states of a text become one vector; the value is GGUF's number."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


@dataclass(frozen=True, slots=True)
class HParams:
    """Sizes and constants of one model.

    A layer with `is_swa` attends to the last `n_swa` positions only, its own included: a token at p
    sees q when p - n_swa < q <= p. `attention_scale` multiplies products of queries and keys. A
    model that is not `causal` attends to its whole input and makes no logits; one that does not
    rotate has an empty `rope`.
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: tuple[int, ...]
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_embd_head_k: int
    n_embd_head_v: int
    norm_eps: float
    rope: tuple[RopeParams, ...]
    attention_scale: float
    n_swa: int
    is_swa: tuple[bool, ...]
    attn_logit_softcap: float = 0.0
    final_logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    causal: bool = True
    n_token_types: int = 0
    n_cls_out: int = 1
    cls_soft_max: bool = False

    def n_embd_k_gqa(self, il: int) -> int:
        """Elements of one token's keys in layer `il`."""
        return self.n_embd_head_k * self.n_head_kv[il]

    def n_embd_v_gqa(self, il: int) -> int:
        """Elements of one token's values in layer `il`."""
        return self.n_embd_head_v * self.n_head_kv[il]
