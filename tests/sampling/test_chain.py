"""The chain: order, draws, state, masks, and what it does with hostile logits."""

import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from app.errors import RequestError
from app.sampling.candidates import F32, Candidates
from app.sampling.chain import SamplerFactory
from app.sampling.choice import Dist, pick
from app.sampling.constraint import Constraint
from app.sampling.errors import SamplingError
from app.sampling.list_kinds import TokenBias
from app.sampling.params import SamplingParams, params_from_request
from app.sampling.rng import Mt19937
from tests.sampling.fake_vocab import FakeVocab, numbered, sampler

N = 500


def logits(step: int, n: int = N) -> F32:
    return (np.random.default_rng(step).standard_normal(n) * 3).astype(np.float32)


REQUESTS: dict[str, dict[str, object]] = {
    "default": {},
    "greedy": {"temperature": 0},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "typical": {"typical_p": 0.5},
    "sigma": {"top_n_sigma": 1.0},
    "dynamic": {"dynatemp_range": 0.4},
    "no filters": {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3},
    "adaptive": {"samplers": "ka", "adaptive_target": 0.2},
    "bias": {"logit_bias": [[3, 5.0], [4, False]]},
    "order": {"samplers": "tpkem", "repeat_penalty": 1.2},
}
every_request = pytest.mark.parametrize("name", REQUESTS)


@every_request
def test_same_seed_same_tokens_and_another_seed_others(name: str) -> None:
    def run(seed: int) -> list[int]:
        s = sampler(N, **REQUESTS[name], seed=seed)
        tokens = []
        for step in range(30):
            tokens.append(s.sample(logits(step)).token)
            s.accept(tokens[-1])
        return tokens

    assert run(5) == run(5)
    assert (run(5) == run(6)) == (name == "greedy")


@every_request
def test_clone_and_replay_go_on_alike(name: str) -> None:
    s = sampler(N, **REQUESTS[name], seed=9)
    s.accept_prompt([1, 2, 3, 1, 2])
    tokens = []
    for step in range(20):
        tokens.append(s.sample(logits(step)).token)
        s.accept(tokens[-1])
    copy = s.clone()
    ahead = [s.sample(logits(99)).token for _ in range(5)]
    s.accept(7)
    assert [copy.sample(logits(99)).token for _ in range(5)] == ahead
    s.reset()
    s.accept_prompt([1, 2, 3, 1, 2])
    for step, token in enumerate(tokens):
        assert s.sample(logits(step)).token == token
        s.accept(token)


@every_request
def test_logits_are_not_changed(name: str) -> None:
    values = logits(1)
    s = sampler(N, **REQUESTS[name])
    s.accept_prompt([1, 1, 1])
    s.sample(values)
    assert np.array_equal(values, logits(1))


@every_request
def test_read_only_logits_are_enough(name: str) -> None:
    values = logits(1)
    values.flags.writeable = False
    sampler(N, **REQUESTS[name]).sample(values)


@pytest.mark.parametrize("extra", [{}, {"repeat_penalty": 1.5}, {"dry_multiplier": 1.0}])
def test_arg_max_shortcut_chooses_what_the_whole_chain_chooses(extra: dict[str, object]) -> None:
    short = sampler(N, temperature=0, top_n_sigma=2, **extra)
    # A removal that never happens keeps the shortcut away.
    whole = sampler(N, temperature=0, top_n_sigma=2, xtc_probability=1e-9, **extra)
    for step in range(50):
        token = short.sample(logits(step)).token
        assert whole.sample(logits(step)).token == token
        short.accept(token)
        whole.accept(token)


def test_typical_may_take_the_best_away_from_temperature_zero() -> None:
    values = np.log(np.array([0.4, 0.2, 0.2, 0.2], dtype=np.float32))
    assert sampler(4, temperature=0, typical_p=0.5).sample(values).token != 0


def test_draw_takes_the_first_candidate_that_reaches_u_of_the_whole() -> None:
    values = np.log(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32))
    rng = Mt19937(11)
    s = sampler(4, temperature=1, top_k=4, top_p=1, min_p=0, seed=11)
    for _ in range(100):
        u = rng.uniform()
        # Sorted by top_k: token 3 up to 0.4, then 2, 1, 0.
        assert s.sample(values).token == 3 - sum(u > edge for edge in (0.4, 0.7, 0.9))


def test_without_top_k_candidates_stay_in_token_order() -> None:
    values = np.log(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32))
    rng = Mt19937(11)
    s = sampler(4, temperature=1, top_k=0, top_p=1, min_p=0, seed=11)
    for _ in range(100):
        u = rng.uniform()
        assert s.sample(values).token == sum(u > edge for edge in (0.1, 0.3, 0.6))


@pytest.mark.parametrize("n", [1, 511, 512, 513, 40_000])
@pytest.mark.parametrize("u", [0.0, 1e-9, 0.3, 0.999999, 1 - 2**-53])
def test_block_sums_find_what_a_running_sum_finds(n: int, u: float) -> None:
    shares = np.random.default_rng(n).random(n, dtype=np.float32)
    running = np.cumsum(shares, dtype=np.float64)
    index, whole = pick(shares, u)
    assert whole == pytest.approx(running[-1], rel=1e-14)
    assert index == min(int(np.searchsorted(running, running[-1] * u)), n - 1)


def test_frequencies_follow_the_probabilities() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    dist = Dist(Mt19937(1))
    c = Candidates(np.log(probs).astype(np.float32))
    counts = np.bincount([dist.select(c).token for _ in range(4000)], minlength=4)
    # Five standard deviations of a binomial count.
    assert (abs(counts - 4000 * probs) < 5 * np.sqrt(4000 * probs * (1 - probs))).all()


def test_random_seed_is_resolved_once_and_can_be_used_again() -> None:
    first = sampler(N, seed=-1, temperature=2)
    again = sampler(N, seed=first.seed, temperature=2)
    assert first.seed != 2**32 - 1
    assert [first.sample(logits(0)).token for _ in range(9)] == [
        again.sample(logits(0)).token for _ in range(9)
    ]


def test_mask_takes_tokens_out() -> None:
    mask = np.zeros(N, dtype=bool)
    mask[[3, 77]] = True
    s = sampler(N)
    assert {s.sample(logits(i), mask).token for i in range(40)} == {3, 77}


@dataclass
class Only:
    """A constraint that allows some tokens."""

    tokens: set[int]
    seen: list[int] = field(default_factory=list)
    masks: int = 0

    def allows(self, token: int) -> bool:
        return token in self.tokens

    def mask(self) -> npt.NDArray[np.bool_]:
        self.masks += 1
        return np.isin(np.arange(N), list(self.tokens))

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def reset(self) -> None:
        self.seen.clear()

    def clone(self) -> Constraint:
        return Only(set(self.tokens), list(self.seen))


def test_constraint_is_asked_only_after_the_choice() -> None:
    best = int(logits(0).argmax())
    only = Only({best})
    s = SamplerFactory(numbered(N)).build(SamplingParams(temperature=0), only)
    assert s.sample(logits(0)).token == best
    assert only.masks == 0


def test_refused_choice_is_drawn_again_among_the_allowed() -> None:
    only = Only({3, 77})
    s = SamplerFactory(numbered(N)).build(SamplingParams(seed=1), only)
    for step in range(20):
        choice = s.sample(logits(step))
        assert choice.token in only.tokens
        s.accept(choice.token)
    assert only.masks > 0
    assert len(only.seen) == 20


def test_constraint_does_not_see_the_prompt_and_is_cloned_with_the_sampler() -> None:
    only = Only({3})
    s = SamplerFactory(numbered(N)).build(SamplingParams(), only)
    s.accept_prompt([1, 2])
    assert only.seen == []
    copy = s.clone()
    copy.accept(3)
    assert only.seen == []
    s.accept(3)
    assert only.seen == [3]
    s.reset()
    assert only.seen == []


def test_constraint_that_allows_nothing_is_an_error() -> None:
    s = SamplerFactory(numbered(N)).build(SamplingParams(), Only(set()))
    with pytest.raises(SamplingError):
        s.sample(logits(0))


HOSTILE: dict[str, tuple[float, bool]] = {
    "NaN": (np.nan, False),
    "+inf": (np.inf, True),
    "-inf": (-np.inf, True),
    "largest": (float(np.finfo(np.float32).max), True),
    "lowest": (float(np.finfo(np.float32).min), True),
}


@every_request
@pytest.mark.parametrize("kind", HOSTILE)
def test_one_hostile_logit_is_an_error_or_harmless(name: str, kind: str) -> None:
    value, is_fine = HOSTILE[kind]
    values = logits(0)
    values[11] = value
    s = sampler(N, **REQUESTS[name])
    s.accept_prompt([11, 12, 11, 12, 11])
    if not is_fine:
        with pytest.raises(SamplingError, match="token 11"):
            s.sample(values)
        return
    choice = s.sample(values)
    assert 0 <= choice.token < N
    assert 0 <= choice.probability <= 1 + 1e-6


@every_request
@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_nothing_to_choose_from_is_an_error(name: str, value: float) -> None:
    with pytest.raises(SamplingError):
        sampler(N, **REQUESTS[name]).sample(np.full(N, value, dtype=np.float32))


@every_request
@pytest.mark.parametrize("value", [np.inf, 0.0, 3e38, -3e38])
def test_all_alike_is_fine(name: str, value: float) -> None:
    assert 0 <= sampler(N, **REQUESTS[name]).sample(np.full(N, value, dtype=np.float32)).token < N


@every_request
def test_only_one_token_left_is_chosen(name: str) -> None:
    values = np.full(N, -np.inf, dtype=np.float32)
    values[123] = -2.0
    assert sampler(N, **REQUESTS[name]).sample(values).token == 123


def test_every_token_forbidden_by_bias_is_an_error() -> None:
    s = sampler(3, logit_bias=[[0, False], [1, False], [2, False]])
    with pytest.raises(SamplingError):
        s.sample(np.zeros(3, dtype=np.float32))


WORDS = FakeVocab((b"a", b"b", b"ab", b"</s>"), eog_tokens=(3,), suppress_tokens=(1,))


def test_texts_in_the_logit_bias_become_tokens() -> None:
    params = params_from_request({"logit_bias": {"aba": -1, "0": 2}}, SamplingParams())
    biases = SamplerFactory(WORDS).resolve(params).logit_bias
    assert biases == (TokenBias(2, -1.0), TokenBias(0, -1.0), TokenBias(0, 2.0))


@pytest.mark.parametrize("token", [-1, 4, 10**9])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    params = params_from_request({"logit_bias": [[token, 1]]}, SamplingParams())
    with pytest.raises(RequestError, match="logit_bias") as caught:
        SamplerFactory(WORDS).build(params)
    assert caught.value.param == "logit_bias"


def test_ignoring_the_end_forbids_its_tokens_once() -> None:
    factory = SamplerFactory(WORDS)
    resolved = factory.resolve(SamplingParams(ignore_eos=True))
    assert resolved.logit_bias == (TokenBias(3, -np.inf),)
    assert factory.resolve(resolved) == resolved
    values = np.array([0, 0, 0, 50], dtype=np.float32)
    assert factory.build(SamplingParams(temperature=0)).sample(values).token == 3
    assert factory.build(SamplingParams(temperature=0, ignore_eos=True)).sample(values).token == 0


def test_suppressed_tokens_are_never_chosen() -> None:
    s = SamplerFactory(WORDS).build(SamplingParams(temperature=0))
    assert s.sample(np.array([1, 9, 2, 0], dtype=np.float32)).token == 2


@pytest.mark.parametrize(("breaker", "token"), [("zz", 1), ("ab", 2)])
def test_breakers_of_the_request_reach_the_sampler(breaker: str, token: int) -> None:
    request = {"dry_multiplier": 9.0, "dry_allowed_length": 1, "temperature": 0}
    params = params_from_request({**request, "dry_sequence_breakers": [breaker]}, SamplingParams())
    s = SamplerFactory(FakeVocab(WORDS.pieces)).build(params)
    # "a" and "ab" would go on with a repetition; a token that is a breaker may do so.
    s.accept_prompt([0, 0, 2, 0, 0])
    assert s.sample(np.array([1.0, 0.0, 0.5, -1.0], dtype=np.float32)).token == token


def test_sampling_needs_no_torch() -> None:
    code = "import sys, app.sampling.chain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
