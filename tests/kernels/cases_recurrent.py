"""Cases of the recurrent operations, the triangular solver and DeepSeek's operations.

Slots of states that no token reaches hold whatever was there, so no case keeps more states than it
has tokens.
"""

from typing import Final

import numpy as np

from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.kernels.harness import Case, Source, below, mask

F16, I32 = GGMLType.F16, GGMLType.I32
SWAP: Final = (0, 2, 1, 3)
# Sums of up to a hundred float32 products, carried from token to token.
NMSE: Final = 1e-11


def _decay(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape) * 0.5 + 0.4


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * 0.2


def _negative(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return -rng.random(shape)


def _triangular(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Lower triangles with a diagonal away from zero."""
    n = shape[-1]
    return np.tril(rng.standard_normal(shape) * 0.3, -1) + np.eye(n) * (1 + rng.random())


def _mamba_cases() -> list[Case]:
    cases = []
    for n_tokens, n_seqs in ((1, 1), (6, 3)):
        sources = (Source((n_tokens + 3, 10, n_seqs)), Source((4, 10)))
        cases.append(Case(f"SSM_CONV-{n_tokens}", Op.SSM_CONV, sources, nmse=NMSE))
        for name, n_state, dim, n_head, n_group, n_decay in (
            ("mamba1", 16, 1, 12, 1, 16),
            ("mamba2", 32, 8, 6, 2, 1),
        ):
            group = (n_state, n_group, n_tokens, n_seqs)
            scan = (
                Source((n_state, dim, n_head, 5)),
                Source((dim, n_head, n_tokens, n_seqs)),
                Source((n_head, n_tokens, n_seqs)),
                Source((n_decay, n_head), fill=_negative),
                Source(group),
                Source(group),
                Source((n_seqs,), I32, below(5)),
            )
            title = f"SSM_SCAN-{name}-{n_tokens}"
            cases.append(Case(title, Op.SSM_SCAN, scan, Params.pack("i", 1), nmse=NMSE))
            if n_decay == 1 and n_tokens > 1:
                kept = Case(f"{title}-kept", Op.SSM_SCAN, scan, Params.pack("i", 3), nmse=NMSE)
                cases.append(kept)
    return cases


def _linear_attention_cases() -> list[Case]:
    cases = []
    dim, n_head = 64, 3  # stock's RWKV_WKV7 writes beside its result for other sizes
    for n_tokens, n_seqs in ((1, 1), (8, 2)):
        x = Source((dim, n_head, n_tokens), fill=_small)
        decay = Source((dim, n_head, n_tokens), fill=_decay)
        state = Source((dim * dim * n_head, n_seqs), fill=_small)
        bonus = Source((dim, n_head))
        rows: dict[Op, tuple[Source, ...]] = {
            Op.RWKV_WKV6: (x, x, x, bonus, decay, state),
            Op.RWKV_WKV7: (x, decay, x, x, x, x, state),
            Op.GATED_LINEAR_ATTN: (x, x, x, decay, state),
        }
        for op, sources in rows.items():
            params = Params.pack("f", 0.25)
            cases.append(Case(f"{op.name}-{n_tokens}", op, sources, params, nmse=NMSE))
    return cases


def _delta_net_cases() -> list[Case]:
    cases = []

    def case(name: str, n_tokens: int, n_seqs: int, n_slots: int = 1, **more: int) -> None:
        n_gate, n_key_heads = more.get("gate", 1), more.get("keys", 4)
        swap = SWAP if more.get("permuted") else None
        keys = Source((16, n_key_heads, n_tokens, more.get("key_seqs", n_seqs)), fill=_small)
        sources = (
            keys,
            keys,
            Source((16, 4, n_tokens, n_seqs), permute=swap),
            Source((n_gate, 4, n_tokens, n_seqs), fill=_negative),
            Source((1, 4, n_tokens, n_seqs), fill=_decay),
            Source((16, 16, 4, n_seqs), fill=_small),
        )
        title = f"GATED_DELTA_NET-{name}"
        params = Params.pack("i", n_slots)
        cases.append(Case(title, Op.GATED_DELTA_NET, sources, params, nmse=NMSE))

    case("one", 1, 1)
    case("many", 7, 2)
    case("few-keys", 5, 2, keys=2)
    case("shared-keys", 3, 4, key_seqs=2)
    case("gate-per-key", 5, 2, gate=16)
    case("permuted", 5, 2, permuted=1)
    case("kept", 6, 2, 3)
    return cases


def _solver_cases() -> list[Case]:
    sizes = {"1": (1, 1, 1), "9": (9, 4, 2), "wide": (5, 40, 3)}
    return [
        Case(
            f"SOLVE_TRI-{name}",
            Op.SOLVE_TRI,
            (Source((n, n, batch, 2), fill=_triangular), Source((k, n, batch, 2))),
            nmse=NMSE,
        )
        for name, (n, k, batch) in sizes.items()
    ]


def _deepseek_cases() -> list[Case]:
    cases = []
    for type_ in (GGMLType.F32, F16, GGMLType.Q8_0):
        for n_tokens, n_seqs, n_masks in ((1, 1, 1), (5, 4, 2)):
            sources = (
                Source((32, 6, n_tokens, n_seqs)),
                Source((32, 1, 20, n_seqs), type_),
                Source((6, n_tokens, 1, n_seqs)),
                Source((20, n_tokens, 1, n_masks), F16, _finite_mask),
            )
            title = f"LIGHTNING_INDEXER-{type_.name}-{n_tokens}"
            cases.append(Case(title, Op.LIGHTNING_INDEXER, sources, nmse=NMSE))
    mixes = (Source((24, 5)), Source((3,)), Source((24,)))
    x, streams, weights = Source((40, 5)), Source((40, 4, 5)), Source((4, 5))
    for rounds in (1, 20):
        params = Params.pack("fi", 1e-6, rounds)
        cases.append(Case(f"DSV4_HC_COMB-{rounds}", Op.DSV4_HC_COMB, mixes, params, nmse=NMSE))
    plain, gated = Params.pack("fi", 1.0, 0), Params.pack("fi", 0.5, 1)
    comb = Source((4, 4, 5))
    cases += [
        Case("DSV4_HC_PRE", Op.DSV4_HC_PRE, (streams, weights), plain, nmse=NMSE),
        Case("DSV4_HC_PRE-gated", Op.DSV4_HC_PRE, (streams, streams), gated, nmse=NMSE),
        Case("DSV4_HC_POST", Op.DSV4_HC_POST, (x, streams, weights, comb), nmse=NMSE),
        Case("DSV4_HC_POST-alone", Op.DSV4_HC_POST, (x, streams, weights), nmse=NMSE),
    ]
    return cases


def _finite_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(np.maximum(mask(rng, shape), -8.0))


RECURRENT_CASES: Final = [
    *_mamba_cases(),
    *_linear_attention_cases(),
    *_delta_net_cases(),
    *_solver_cases(),
    *_deepseek_cases(),
]
