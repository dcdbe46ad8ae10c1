"""Every operation of our worker against ggml's CPU backend, in the cases of llama.cpp's own
test-backend-ops, driven by a stock client.

The whole takes an hour; `-k "[SOFT_MAX]"` takes one operation. The names are those that the
program gives its cases: functions count as operations, and some names stand for several nodes.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.backend_ops import PROGRAM, run_operation
from tests.helpers.process import Running, own_worker

pytestmark = [pytest.mark.peer_v7, pytest.mark.slow]

FUNCTIONS: Final = (
    *("ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU"),
    *("HARDSWISH", "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL"),
    *("ROUND", "TRUNC", "REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_OAI"),
    "SWIGLU_CLAMP",
)
CORE: Final = (
    *("ACC", "ADD", "ADD_ID", "ARANGE", "ARGMAX", "ARGSORT", "CLAMP", "CONCAT", "CONT", "COS"),
    *("COUNT_EQUAL", "CPY", "CUMSUM", "DIAG", "DIAG_MASK_INF", "DIV", "DUP", "FILL", "GET_ROWS"),
    *("FLASH_ATTN_EXT", "GROUP_NORM", "L2_NORM", "LEAKY_RELU", "LOG", "MEAN", "MUL", "MUL_MAT"),
    *("MUL_MAT_HADAMARD", "MUL_MAT_ID", "NORM", "OUT_PROD", "PAD", "PAD_REFLECT_1D", "REPEAT"),
    *("REPEAT_BACK", "RMS_NORM", "ROLL", "ROPE", "ROPE_BACK", "SCALE", "SET", "SET_ROWS", "SIN"),
    *("SOFT_MAX", "SQR", "SQRT", "SUB", "SUM", "SUM_ROWS", "TIMESTEP_EMBEDDING", "TOP_K", "TRI"),
)
OTHERS: Final = (
    *("COL2IM_1D", "CONV_1D_DW", "CONV_2D", "CONV_2D_DW", "CONV_3D", "CONV_TRANSPOSE_1D"),
    *("CONV_TRANSPOSE_2D", "DSV4_HC_COMB", "DSV4_HC_POST", "DSV4_HC_PRE", "GATED_DELTA_NET"),
    *("GATED_LINEAR_ATTN", "IM2COL", "IM2COL_3D", "LIGHTNING_INDEXER", "POOL_1D", "POOL_2D"),
    *("RWKV_WKV6", "RWKV_WKV7", "SOLVE_TRI", "SSM_CONV", "SSM_SCAN", "UPSCALE"),
)
# How many cases may fail, where it is not our result that is wrong.
TOLERATED: Final = {
    "SUM": 1,  # ggml's CPU backend adds the wrong elements of a transposed matrix
    "CPY": 4,  # F16 and BF16 to Q8_0: ggml-cpu rounds halves to even, its reference does not
    "SET_ROWS": 4,  # likewise, and K types fit two scales equally well now and then
}


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[Running, int]]:
    asset("backend_ops")
    with own_worker("--protocol", "7", "-d", "CPU") as running:
        yield running


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*CORE, *FUNCTIONS, *OTHERS])
def test_results_are_those_of_ggml(worker: tuple[Running, int], name: str) -> None:
    outcome = run_operation(asset("backend_ops") / PROGRAM, worker[1], worker[0], name)
    assert outcome.passed > 0
    assert not outcome.refused
    assert len(outcome.failed) <= TOLERATED.get(name, 0), "\n".join(outcome.failed)
