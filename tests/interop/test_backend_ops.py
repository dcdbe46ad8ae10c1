"""Every operation of our worker against ggml's CPU backend, in the cases of llama.cpp's own
test-backend-ops, driven by a stock client.

The sample takes two or three minutes; all cases, by hand, an hour: `-k "every_case and [SOFT_MAX]"`
takes one operation. The names are those that the program gives its cases: functions count as
operations, and some names stand for several nodes.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pytest

from tests.helpers.assets import asset
from tests.helpers.backend_ops import PROGRAM, Case, list_cases, run_cases, spread
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
# Graphs of several operations, which ggml's backends may fuse.
SEQUENCES: Final = (
    *("ADD_ADD", "ADD_RMS_NORM", "GATED_DELTA_NET_CACHE_FUSION", "GELU_MUL", "GROUP_NORM_MUL_ADD"),
    *("L2_NORM_BATCH", "MOE_REDUCE", "MUL_MAT_ADD", "MUL_MAT_ID_FUSION", "MUL_MAT_ID_SHARED"),
    *("MUL_MAT_ID_W4A4", "MUL_MAT_ID_W4A8", "MUL_MAT_VEC_FUSION", "MUL_MAT_W4A4", "MUL_MAT_W4A8"),
    *("NORM_MUL_ADD", "NORM_SCALE", "RELU_SQR", "RMS_NORM_MUL_ADD", "RMS_NORM_MUL_ROPE"),
    *("RMS_NORM_SCALE", "ROPE_SET_ROWS", "SIGMOID_MUL", "SILU_MUL", "SNAKE_FUSE", "SOFTCAP"),
    *("SOFTPLUS_MUL", "SSM_CONV_BIAS_SILU", "SSM_SCAN_ROLLBACK", "TOPK_MOE", "TOPK_QSA"),
)
# What is refused: nothing but training needs it.
TRAINING: Final = {
    *("CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK", "GET_ROWS_BACK", "OPT_STEP_ADAMW"),
    *("OPT_STEP_SGD", "RMS_NORM_BACK", "SILU_BACK", "SOFT_MAX_BACK"),
}
NAMES: Final = (*CORE, *FUNCTIONS, *OTHERS, *SEQUENCES)

# The sample has so many cases of an operation (there are 28 types), none larger than this.
SAMPLED: Final = 32
LARGEST_BYTES: Final = 16 << 20

# Which cases may fail, where it is not our result that is wrong.
TOLERATED: Final = re.compile(
    # ggml's CPU backend takes the stride within a row for that of F32, and adds wrong elements.
    r"SUM\(type=f32,ne=\[33,256,1,1\],permute=\[1,0,2,3\]\)"
    # Numbers just between two: ggml-cpu takes the even one, ggml's reference and we the greater.
    r"|(CPY|SET_ROWS)\(type_src=b?f16,type_dst=q8_0,.*\)"
)

Cases = Mapping[str, Sequence[Case]]


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[Running, int]]:
    asset("backend_ops")
    with own_worker("--protocol", "7", "-d", "CPU") as running:
        yield running


@pytest.fixture(scope="module")
def cases(worker: tuple[Running, int]) -> Cases:
    by_operation = defaultdict[str, list[Case]](list)
    for case in list_cases(asset("backend_ops") / PROGRAM, worker[1]):
        by_operation[case.operation].append(case)
    return by_operation


@pytest.fixture(scope="module")
def sample(cases: Cases) -> Cases:
    small = {
        name: [case for case in cases[name] if case.n_bytes <= LARGEST_BYTES] for name in NAMES
    }
    return {name: spread(small[name], SAMPLED) for name in NAMES}


@pytest.fixture(scope="module")
def said(worker: tuple[Running, int], sample: Cases) -> Mapping[Case, str]:
    # In one run, since ggml makes its tables of some types anew in each, which takes seconds.
    chosen = [case for name in NAMES for case in sample[name]]
    return run_cases(asset("backend_ops") / PROGRAM, worker[1], worker[0], chosen)


def test_every_operation_with_cases_is_named_here(cases: Cases) -> None:
    assert set(cases) == {*NAMES, *TRAINING}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_gives_the_results_of_ggml(
    sample: Cases, said: Mapping[Case, str], name: str
) -> None:
    _expect_agreement(sample[name], said)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_every_case_gives_the_results_of_ggml(
    worker: tuple[Running, int], cases: Cases, name: str
) -> None:
    program = asset("backend_ops") / PROGRAM
    _expect_agreement(cases[name], run_cases(program, worker[1], worker[0], cases[name]))


def _expect_agreement(cases: Sequence[Case], said: Mapping[Case, str]) -> None:
    assert cases
    assert [case for case in cases if case not in said] == []
    wrong = {f"{case.operation}{case.parameters}": said[case] for case in cases if said[case]}
    assert {case: why for case, why in wrong.items() if not TOLERATED.fullmatch(case)} == {}
