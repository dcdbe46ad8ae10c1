"""POST /infill: the prompt around a gap, what it leaves out, and models that cannot fill one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.api.errors import ApiError
from app.api.infill import Room, fim_tokens, infill_prompt
from app.tokenizer.base import SpecialIds, Vocab
from tests.helpers.fake_engine import BOS, EOS, ByteTokenizer, FakeEngine
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

PRE, SUF, MID, REP, SEP = 258, 259, 260, 261, 262
NAMES = {PRE: "<pre>", SUF: "<suf>", MID: "<mid>", REP: "<rep>", SEP: "<sep>"}
ROOM = Room(n_batch=64, n_ctx=4096, n_predict=16)
GAP: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "): pass"}


class GapTokenizer(ByteTokenizer):
    """One token per byte, and tokens for gaps; those for files only if `files`."""

    def __init__(self, *, files: bool = False) -> None:
        special = SpecialIds(bos=BOS, eos=EOS, fim_pre=PRE, fim_suf=SUF, fim_mid=MID)
        if files:
            special = replace(special, fim_rep=REP, fim_sep=SEP)
        plain = ByteTokenizer.vocab
        tokens = [*plain.tokens, *NAMES.values()]
        self.vocab = replace(plain, tokens=tokens, types=[*plain.types, *[3] * 5], special=special)

    def show(self, tokens: tuple[int, ...]) -> str:
        return self.decode(tokens, special=True)


def shown(tokenizer: GapTokenizer, *, suffix_first: bool = False, **fields: Any) -> str:
    room = fields.pop("room", ROOM)
    return tokenizer.show(infill_prompt(tokenizer, GAP | fields, room, suffix_first=suffix_first))


@pytest.fixture
def engine() -> FakeEngine:
    made = FakeEngine()
    made.tokenizer = GapTokenizer(files=True)
    return made


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine) as live:
        yield live


def test_the_gap_is_between_prefix_and_suffix() -> None:
    tokenizer = GapTokenizer()
    assert shown(tokenizer) == "<s><pre>def f(<suf>): pass<mid>"
    assert shown(tokenizer, prompt="a, ") == "<s><pre>def f(a, <suf>): pass<mid>"


def test_a_model_may_want_the_suffix_first() -> None:
    told = shown(GapTokenizer(), suffix_first=True, prompt="a")
    assert told == "<s><suf>): pass<pre>def f(a<mid>"


def test_ids_may_stand_in_the_texts() -> None:
    assert shown(GapTokenizer(), input_prefix=[97, "bc"]) == "<s><pre>abc<suf>): pass<mid>"


def test_files_come_before_the_gap_with_their_names() -> None:
    extra = [{"filename": "a.h", "text": "one"}, {"text": "two"}]
    assert shown(GapTokenizer(files=True), input_extra=extra) == (
        "<rep>myproject\n<sep>a.h\none<sep>tmp\ntwo<sep>filename\n<s><pre>def f(<suf>): pass<mid>"
    )
    assert shown(GapTokenizer(), input_extra=extra).startswith(
        "\n\n--- snippet ---\n\none\n\n--- snippet ---\n\ntwo<s><pre>"
    )


def test_what_is_nearest_to_the_gap_is_kept() -> None:
    told = shown(GapTokenizer(), input_prefix="a" * 100 + "b" * 48, input_suffix="c" * 14 + "d" * 9)
    assert told == f"<s><pre>{'b' * 48}<suf>{'c' * 14}<mid>"


def test_the_last_files_are_kept_where_the_context_is_small() -> None:
    room = Room(n_batch=64, n_ctx=64 + 2 * 30 + 5, n_predict=30)
    told = shown(GapTokenizer(), room=room, input_extra=[{"text": "abcdefgh"}])
    assert told == "defgh<s><pre>def f(<suf>): pass<mid>"


@pytest.mark.parametrize("n_ctx", [64, 300, 4096])
@pytest.mark.parametrize("n_predict", [-1, 0, 64, 10**6])
def test_long_texts_leave_room_for_an_answer(n_ctx: int, n_predict: int) -> None:
    tokenizer = GapTokenizer(files=True)
    body: dict[str, Any] = {"input_prefix": "a" * 999, "input_suffix": "b" * 999}
    body["input_extra"] = [{"text": "c" * 999}]
    prompt = infill_prompt(tokenizer, body, Room(2048, n_ctx, n_predict), suffix_first=False)
    assert len(prompt) + 4 <= n_ctx


@pytest.mark.parametrize("n_ctx", [1, 3, 8])
def test_a_context_without_room_holds_the_gap_alone(n_ctx: int) -> None:
    prompt = infill_prompt(GapTokenizer(), GAP, Room(2048, n_ctx, -1), suffix_first=False)
    assert [token for token in prompt if token >= PRE] == [PRE, SUF, MID]


def test_a_vocabulary_without_such_tokens_says_which_are_missing() -> None:
    vocab: Vocab = replace(ByteTokenizer.vocab, special=SpecialIds(fim_pre=1))
    with pytest.raises(ApiError, match=r"model: suffix token is missing. middle token is missing."):
        fim_tokens(vocab)


def test_an_answer_has_llama_servers_own_form(server: LiveServer, engine: FakeEngine) -> None:
    answer = server.client.post("/infill", json=GAP | {"n_predict": 5}).json()
    assert answer["content"] == "Hello" and answer["stop_type"] == "limit"
    assert answer["prompt"].endswith("<s><pre>def f(<suf>): pass<mid>")
    assert engine.submitted[0].n_predict == 5


def test_suffix_first_is_a_setting(engine: FakeEngine) -> None:
    with live_server(engine, replace(SETTINGS, spm_infill=True)) as server:
        answer = server.client.post("/infill", json=GAP).json()
    assert answer["prompt"].endswith("<s><suf>): pass<pre>def f(<mid>")


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_prefix": None},
        {"input_suffix": None},
        {"input_suffix": 5},
        {"input_suffix": [-1]},
        {"prompt": ["a"]},
        {"input_extra": "x"},
        {"input_extra": [{}]},
        {"input_extra": [{"filename": "ok"}]},
        {"input_extra": [{"filename": 123}]},
        {"input_extra": [{"filename": 123, "text": "abc"}]},
        {"input_extra": [{"filename": 123, "text": 456}]},
    ],
    ids=str,
)
def test_wrong_fields_are_refused(
    server: LiveServer, engine: FakeEngine, wrong: dict[str, object]
) -> None:
    answer = server.client.post("/infill", json=GAP | wrong)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not engine.submitted


def test_a_model_without_such_tokens_cannot() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.client.post("/infill", json=GAP)
    assert answer.status_code == 501
    assert answer.json()["error"]["type"] == "not_supported_error"
