"""Parameters: what a request may say, how it is shown, and how the command line says it."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from app.errors import RequestError
from app.sampling.list_kinds import SAMPLER_LETTERS, TokenBias
from app.sampling.params import PARAMS, SamplingParams, generation_settings, params_from_request
from app.sampling.table import STAGES

DEFAULT = SamplingParams()


def read(**request: object) -> SamplingParams:
    return params_from_request(request, DEFAULT)


def test_nothing_said_means_the_defaults() -> None:
    assert read() == DEFAULT
    assert params_from_request({p.name: None for p in PARAMS}, DEFAULT) == DEFAULT


def test_defaults_are_those_of_the_server_not_of_this_module() -> None:
    server = replace(DEFAULT, top_k=7, dry_base=2.5)
    assert params_from_request({"top_p": 0.5}, server) == replace(server, top_p=0.5)
    assert params_from_request({"dry_base": 0.5}, server).dry_base == 2.5


def test_other_fields_are_not_looked_at() -> None:
    assert read(prompt="x", stop=[1], stream="maybe") == DEFAULT


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("top_k", -5, 0),
        ("top_k", 2**40, 2**31 - 1),
        ("top_p", 1.5, 1.0),
        ("min_p", -0.5, 0.0),
        ("xtc_probability", 2, 1.0),
        ("xtc_threshold", -1, 0.0),
        ("temperature", -0.5, 0.0),
        ("mirostat", 5, 2),
        ("adaptive_target", 3, 1.0),
        ("seed", -1, 2**32 - 1),
        ("seed", 2**32 + 5, 5),
        ("seed", 7.0, 7),
        ("top_k", 30.0, 30),
        ("temperature", 1, 1.0),
        ("logprobs", True, None),
    ],
)
def test_accepted_and_clamped(name: str, value: object, kept: object) -> None:
    if name == "logprobs":
        assert read(logprobs=value).n_probs == 1
        return
    assert getattr(read(**{name: value}), name) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "40"),
        ("top_k", True),
        ("top_k", 1.5),
        ("top_k", [1]),
        ("temperature", "hot"),
        ("temperature", nan),
        ("temperature", inf),
        ("top_p", -inf),
        ("presence_penalty", 1e39),
        ("repeat_last_n", -1),
        ("repeat_last_n", 2**31),
        ("repeat_penalty", 0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", 1e-45),
        ("dry_penalty_last_n", -1),
        ("dry_allowed_length", -1),
        ("adaptive_decay", 1.0),
        ("adaptive_decay", -0.1),
        ("min_keep", -1),
        ("n_probs", -1),
        ("logprobs", "all"),
        ("seed", "x"),
        ("seed", 0.5),
        ("ignore_eos", 1),
        ("post_sampling_probs", "true"),
        ("samplers", 3),
        ("samplers", ["top_k", "magic"]),
        ("samplers", ["top_k", 1]),
        ("samplers", "kz"),
        ("samplers", "k" * 65),
        ("samplers", {"top_k": 1}),
        ("dry_sequence_breakers", []),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", [1]),
        ("dry_sequence_breakers", ["x"] * 65),
        ("logit_bias", 1),
        ("logit_bias", [1, 2]),
        ("logit_bias", [[1]]),
        ("logit_bias", [[1, True]]),
        ("logit_bias", [[1, nan]]),
        ("logit_bias", [[1.5, 1]]),
        ("logit_bias", [[True, 1]]),
        ("logit_bias", {"a": "b"}),
    ],
)
def test_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        read(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(f"{name}: got ")
    assert "expected " in str(caught.value)


def test_a_message_stays_short_whatever_was_sent() -> None:
    with pytest.raises(RequestError) as caught:
        read(top_k="x" * 100_000)
    assert len(str(caught.value)) < 200


def test_the_name_goes_before_the_alias() -> None:
    assert read(n_probs=3, logprobs=5).n_probs == 3
    assert read(n_probs=None, logprobs=5).n_probs == 5


@pytest.mark.parametrize(
    "order",
    [
        ["top_k", "min_p", "temperature"],
        ["top-k", "min-p", "temp"],
        ["TopK", "minp", "Temperature"],
        "kmt",
        "top_k;min_p;temperature",
    ],
)
def test_samplers_by_name_alias_or_letter(order: object) -> None:
    assert read(samplers=order).samplers == ("top_k", "min_p", "temperature")


def test_samplers_default_order_in_letters() -> None:
    assert "".join(SAMPLER_LETTERS[name] for name in DEFAULT.samplers) == "edskypmxt"


def test_no_samplers_at_all_is_a_choice() -> None:
    assert read(samplers=[]).samplers == ()
    assert read(samplers="").samplers == ()


def test_every_sampler_that_can_be_named_is_in_the_table() -> None:
    assert set(SAMPLER_LETTERS) == {*STAGES, "adaptive_p"}


@pytest.mark.parametrize(
    "value",
    [[[5, 1.5], ["yes", -2], [6, False]], {"5": 1.5, "yes": -2, "6": False}],
    ids=["pairs", "object"],
)
def test_logit_bias_forms(value: object) -> None:
    expected = (TokenBias(5, 1.5), TokenBias("yes", -2.0), TokenBias(6, -inf))
    assert read(logit_bias=value).logit_bias == expected


def test_settings_have_every_parameter_as_the_request_names_it() -> None:
    assert set(generation_settings(DEFAULT)) == {p.name for p in PARAMS}


def test_settings_show_float32_values() -> None:
    shown = generation_settings(read(temperature=0.7))
    assert shown["temperature"] == float(np.float32(0.7)) != 0.7
    assert shown["top_k"] == 40


def test_settings_of_lists() -> None:
    params = read(logit_bias=[[5, 1.5], [6, False]], samplers="kt")
    shown = generation_settings(params)
    assert shown["logit_bias"] == [{"bias": 1.5, "token": 5}, {"bias": None, "token": 6}]
    assert shown["samplers"] == ["top_k", "temperature"]
    assert shown["dry_sequence_breakers"] == ["\n", ":", '"', "*"]


def test_short_settings_leave_out_the_long_lists() -> None:
    left_out = set(generation_settings(DEFAULT)) - set(generation_settings(DEFAULT, in_short=True))
    assert left_out == {"logit_bias", "dry_sequence_breakers"}


def test_settings_can_be_sent_again() -> None:
    shown = generation_settings(read(temperature=0.7, seed=5, samplers="kpt", mirostat=1))
    again = generation_settings(params_from_request(shown, DEFAULT))
    assert again == shown


FLAGS = {name: (param, flag) for param in PARAMS for flag in param.flags for name in flag.names}


@pytest.mark.parametrize(
    ("flag", "texts", "expected"),
    [
        ("--temp", ["0.5"], 0.5),
        ("--temp", ["0.5", "0.6"], 0.6),
        ("-s", ["42"], 42),
        ("--seed", ["-1"], 2**32 - 1),
        ("--top-k", ["10"], 10),
        ("--samplers", ["top_k;temp"], ("top_k", "temperature")),
        ("--sampler-seq", ["kt"], ("top_k", "temperature")),
        ("--ignore-eos", [], True),
        ("--dry-sequence-breaker", ["x", "y"], ("x", "y")),
        ("--dry-sequence-breaker", ["none"], ("",)),
        ("-l", ["5+1.5", "6-inf"], (TokenBias(5, 1.5), TokenBias(6, -inf))),
    ],
)
def test_flags_say_what_json_says(flag: str, texts: list[str], expected: object) -> None:
    param, row = FLAGS[flag]
    params = params_from_request({param.name: row.value(texts)}, DEFAULT)
    assert getattr(params, param.name) == expected


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--temp", "warm"),
        ("--temp", "nan"),
        ("--top-k", "1.5"),
        ("--repeat-penalty", "0"),
        ("--samplers", "top_k;magic"),
        ("--logit-bias", "5"),
        ("--logit-bias", "+5"),
        ("--logit-bias", "5+x"),
    ],
)
def test_bad_flags_are_refused(flag: str, text: str) -> None:
    param, row = FLAGS[flag]
    with pytest.raises(RequestError, match=param.name):
        params_from_request({param.name: row.value([text])}, DEFAULT)


def test_flags_and_help_are_complete_and_unique() -> None:
    names = [name for p in PARAMS for flag in p.flags for name in flag.names]
    assert len(names) == len(set(names))
    assert all(p.help and p.kind.expected and p.kind.json_type for p in PARAMS)
