"""Flags and variables become configuration: spellings, precedence, warnings, refusals."""

from pathlib import Path

import pytest

from app.api.settings import PredictSettings, ServerSettings
from app.cli.flags.escapes import unescaped
from app.cli.flags.option import Status
from app.cli.flags.parser import UnknownFlagError
from app.cli.flags.table import GROUPS, OPTIONS, usage
from app.cli.options import Command, read_command
from app.engine.config import EngineConfig, FlashAttention, SplitMode
from app.engine.request import Grammar, GrammarKind
from app.errors import ConfigError
from app.ggml.types import GGMLType
from app.sampling.params import SamplingParams

# What llama.cpp's own server tests start their smallest model with.
SUITE = """--port 8080 --temp 0.8 --seed 42 --host 127.0.0.1 --offline
    --hf-repo ggml-org/test-model-stories260K --batch-size 32 --no-slots --alias tinyllama-2
    --ctx-size 512 --parallel 2 --n-predict 64 --no-jinja"""
SUITE_MORE = """--model a.gguf --model-draft b --hf-file c --models-dir d --models-max 2
    --models-preset e --cors-origins localhost --ubatch-size 8 --threads 2 --n-gpu-layers 99
    --cont-batching --embedding --reranking --metrics --kv-unified --swa-full --slots
    --pooling mean --tags a,b -ctk f16 -ctv q8_0 -fa on --slot-save-path . --verbose
    --context-shift --spec-type none --api-key k --spec-draft-n-max 2 --spec-draft-n-min 1
    --spec-synth-len 1 --spec-synth-rates 0.5,0.5 --no-ui --no-models-autoload --jinja
    --reasoning-format none --reasoning off --chat-template chatml --mmproj-url u --no-mmproj
    --media-path g --sleep-idle-seconds 1 --cache-ram 100 --no-cache-idle-slots --ui-mcp-proxy
    --tools all --tools-runtime h --mcp-servers-config i --mcp-servers-json {}
    --backend_sampling"""


DEMO_NAME = "SmolLM2-135M-Instruct.Q4_1"


def read(line: str = "", **environ: str) -> Command:
    return read_command(line.split(), environ)


def test_nothing_said_means_the_defaults() -> None:
    command = read(LLAMA_SERVE_CACHE="/c")
    assert command.engine == EngineConfig(model_path=Path(), hash_folder=Path("/c/hashes"))
    assert command.server == ServerSettings(model_name=DEMO_NAME, aliases=(DEMO_NAME,))
    assert command.server.defaults.sampling == SamplingParams()


def test_the_size_of_hashed_weights_is_the_stock_variable() -> None:
    assert read(GGML_RPC_CACHE_MIN_SIZE="1000").engine.hash_min_bytes == 1000
    with pytest.raises(ConfigError, match="GGML_RPC_CACHE_MIN_SIZE '10M': expected an integer"):
        read(GGML_RPC_CACHE_MIN_SIZE="10M")


def test_the_peers_suite_is_understood() -> None:
    command = read(SUITE)
    assert command.source.hf is not None
    assert (command.source.hf.repo, command.source.hf.offline) == (
        "ggml-org/test-model-stories260K",
        True,
    )
    assert (command.engine.n_ctx, command.engine.n_batch, command.engine.n_parallel) == (
        512,
        32,
        2,
    )
    assert command.server.model_name == "tinyllama-2"
    assert not command.server.endpoint_slots and not command.server.chat.jinja
    assert command.server.defaults.n_predict == 64
    assert command.server.defaults.sampling == SamplingParams(seed=42, temperature=0.8)


def test_every_further_flag_of_the_peers_suite_is_accepted() -> None:
    command = read(SUITE_MORE)
    assert command.server.tags == ("a", "b")
    assert command.engine.cache_type_v is GGMLType.Q8_0
    assert command.server.chat.enable_thinking is False
    assert command.server.defaults.verbose


def test_placement() -> None:
    command = read(
        "--rpc a:1,b:2 --rpc c:3 -dev RPC0,CUDA0 -ngl 12 -ts 3/1 -sm none -mg 1 -nkvo -t 4 -tb 8"
    )
    engine = command.engine
    assert engine.rpc_endpoints == ("a:1", "b:2", "c:3")
    assert engine.devices == ("RPC0", "CUDA0")
    assert (engine.n_gpu_layers, engine.tensor_split) == (12, (3.0, 1.0))
    assert (engine.split_mode, engine.main_gpu) == (SplitMode.NONE, 1)
    assert (engine.kv_offload, engine.threads, engine.threads_batch) == (False, 4, 8)


def test_no_device_is_not_the_same_as_no_word_about_devices() -> None:
    assert read("-dev none").engine.devices == ()
    assert read().engine.devices is None


@pytest.mark.parametrize("word", ["auto", "all", "-1"])
def test_all_layers_have_several_names(word: str) -> None:
    assert read(f"-ngl {word}").engine.n_gpu_layers is None


def test_variables_count_before_flags() -> None:
    command = read(
        "--port 2", LLAMA_ARG_PORT="1", LLAMA_ARG_CTX_SIZE="99", LLAMA_ARG_HOST="192.0.2.1"
    )
    assert command.server.port == 2
    assert command.engine.n_ctx == 99
    assert command.server.hosts == ("192.0.2.1",)
    assert read("--host ::1", LLAMA_ARG_HOST="192.0.2.1").server.hosts == ("::1",)


def test_workers_of_variable_and_flag_add_up() -> None:
    assert read("--rpc b:2", LLAMA_ARG_RPC="a:1").engine.rpc_endpoints == ("a:1", "b:2")


@pytest.mark.parametrize("word", ["on", "enabled", "true", "1"])
def test_words_that_mean_yes(word: str) -> None:
    assert read(LLAMA_ARG_ENDPOINT_METRICS=word).server.endpoint_metrics


@pytest.mark.parametrize("word", ["off", "disabled", "false", "0"])
def test_words_that_mean_no(word: str) -> None:
    assert not read(LLAMA_ARG_ENDPOINT_SLOTS=word).server.endpoint_slots
    assert not read(LLAMA_ARG_ENDPOINT_METRICS=word).server.endpoint_metrics


def test_a_no_variable_switches_off_whatever_its_value() -> None:
    assert not read(LLAMA_ARG_NO_UI="0").server.ui
    assert not read(LLAMA_ARG_NO_ENDPOINT_SLOTS="").server.endpoint_slots


def test_underscores_and_dashes_are_the_same_in_long_flags() -> None:
    assert read("--ctx_size 7 --no_slots").engine.n_ctx == 7


def test_a_flag_given_twice_warns_and_the_last_counts() -> None:
    command = read("--port 1 --port 2 --seed 1 --seed 2")
    assert (command.server.port, command.server.defaults.sampling.seed) == (2, 2)
    assert sum("more than once" in warning for warning in command.warnings) == 2


def test_a_bare_flash_attention_flag_means_on() -> None:
    assert read("-fa").engine.flash_attn is FlashAttention.ON
    assert read("-fa --port 1").engine.flash_attn is FlashAttention.ON
    assert read("-fa off").engine.flash_attn is FlashAttention.OFF


@pytest.mark.parametrize("flag", ["--no-mmap", "--mlock", "--direct-io", "--draft 4", "-sm row"])
def test_old_spellings_are_accepted_with_one_warning(flag: str) -> None:
    warnings = [
        w
        for w in read(f"{flag} --api-key k").warnings
        if flag.split()[0] in w or "-sm" in w or "--split-mode" in w
    ]
    assert len(warnings) == 1


def test_ignored_flags_at_their_default_do_not_warn() -> None:
    quiet = read("--mmap --no-context-shift --fit on --op-offload --api-key k")
    assert quiet.warnings == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lora x", "--lora is not supported"),
        ("--control-vector x", "not supported"),
        ("--port", "expected a value"),
        ("--port many", "--port 'many': expected an integer"),
        ("--port 70000", "expected an integer from 0 to 65535"),
        ("--ctx-size -1", "--ctx-size '-1'"),
        ("-np 0", "--parallel 0"),
        ("-ts 1,x", "-ts '1,x': expected a number"),
        ("-ctk q9", "expected one of"),
        ("--override-kv a", "expected KEY=TYPE:VALUE"),
        ("--override-kv a=int:x", "--override-kv"),
        ("--temp hot", "temperature"),
        ("--logit-bias abc", "logit_bias"),
        ("--samplers top_k;nothing", "nothing"),
        ("--ssl-key-file a", "--ssl-cert-file"),
        ("--api-key-file /nowhere/keys", "--api-key-file /nowhere/keys"),
        ("--chat-template-kwargs []", "--chat-template-kwargs"),
        ("--grammar a --json-schema {}", "exclude one another"),
    ],
)
def test_what_cannot_be_honoured_is_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(line)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        *("-m", "-ngl hello", "-sm hello", "-lm hello", "-fit maybe"),
        *("--repeat-last-n -1", "--dry-penalty-last-n -1", "--repeat-penalty 0"),
        *(f"--repeat-penalty {value}" for value in ("-1", "nan", "inf", "-inf")),
        *(f"--{of}-penalty {v}" for of in ("frequency", "presence") for v in ("nan", "inf")),
    ],
)
def test_what_llama_cpp_refuses_in_its_own_test_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        read(line)


def test_a_variable_that_cannot_be_honoured_is_named() -> None:
    with pytest.raises(ConfigError, match="LLAMA_ARG_UI 'maybe'"):
        read(LLAMA_ARG_UI="maybe")


def test_an_unknown_flag_is_reported_as_llama_server_does() -> None:
    with pytest.raises(UnknownFlagError, match=r"^invalid argument: --no_such$"):
        read("--no_such")


def test_names_of_the_model_are_sorted() -> None:
    server = read("-m x.gguf -a tinyllama-2,fim,code").server
    assert (server.model_name, server.aliases) == ("code", ("code", "fim", "tinyllama-2"))
    assert read("-m x.gguf").server.model_name == "x.gguf"


def test_keys_come_from_flags_variable_and_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\nthree\n\nfour\n")
    server = read(f"--api-key one,two --api-key-file {keys}", LLAMA_API_KEY="zero").server
    assert server.api_keys == ("zero", "one", "two", "three", "four")
    assert "three" not in repr(server)


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="has no key"):
        read(f"--api-key-file {keys}")


def test_chat_settings(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    chat = read(
        f'--chat-template-file {template} --chat-template-kwargs {{"a":1}} --reasoning-effort low'
    ).server.chat
    assert (chat.template, chat.kwargs, chat.reasoning_effort) == (
        "{{ messages }}",
        {"a": 1},
        "low",
    )
    assert chat.enable_thinking
    assert not read("--reasoning-effort none").server.chat.enable_thinking


def test_request_defaults() -> None:
    defaults = read_command(
        ["-r", r"a\nb", "-r", "c", "--keep", "5", "--no-cache-prompt", "-sp", "-l", "15-inf"], {}
    ).server.defaults
    assert defaults.stop == ("a\nb", "c")
    assert (defaults.n_keep, defaults.cache_prompt, defaults.special) == (5, False, True)
    assert len(defaults.sampling.logit_bias) == 1


def test_every_request_can_be_constrained() -> None:
    schema = read('--json-schema {"type":"string"}').server.defaults.grammar
    assert schema == Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}')
    assert read("--grammar root::=x").server.defaults.grammar == Grammar(
        GrammarKind.GBNF, "root::=x"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"a\nb", "a\nb"), (r"\\n", r"\n"), (r"\x41\t", "A\t"), (r"\q\x4", r"\q\x4"), ("\\", "\\")],
)
def test_escapes(text: str, expected: str) -> None:
    assert unescaped(text) == expected


def test_no_two_options_share_a_name_or_a_variable() -> None:
    names = [name for o in OPTIONS for name in (*o.names, *o.off_names)]
    assert len(names) == len(set(names))
    variables = [o.env for o in OPTIONS if o.env]
    assert len(variables) == len(set(variables))


def test_every_option_that_does_less_than_it_says_has_a_reason() -> None:
    assert all(o.note for o in OPTIONS if o.status is not Status.HONOURED)


def test_help_names_every_flag() -> None:
    text = usage()
    assert all(name in text for group in GROUPS for o in group.options for name in o.names)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("flags", [["--ui-mcp-proxy"], ["--tools", "all"], ["--agent"]])
def test_pages_elsewhere_are_not_let_at_tools_unless_said(flags: list[str]) -> None:
    assert read_command(flags, {}).server.cors.origins == "localhost"
    assert read_command([*flags, "--cors-origins", "*"], {}).server.cors.origins == "*"
    assert read_command([], {}).server.cors.origins == "*"


def test_what_is_kept_is_said_by_flags(tmp_path: Path) -> None:
    argv = ["--slot-save-path", str(tmp_path), "-cram", "-1", "--no-cache-idle-slots"]
    command = read_command([*argv, "--sleep-idle-seconds", "3", "--context-shift"], {})
    assert command.server.slot_save_path == tmp_path
    engine = command.engine
    assert (engine.cache_ram_mib, engine.cache_idle_slots, engine.sleep_idle_s) == (-1, False, 3.0)
    assert engine.context_shift
    assert read_command([], {}).engine.sleep_idle_s is None
    for wrong in (["--sleep-idle-seconds", "0"], ["--slot-save-path", str(tmp_path / "none")]):
        with pytest.raises(ConfigError):
            read_command(wrong, {})


def test_vertex_says_port_and_paths() -> None:
    environ = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "7000", "AIP_HEALTH_ROUTE": "alive"}
    server = read_command(["--port", "8000"], environ).server
    assert server.port == 7000
    assert server.predict == PredictSettings("/predict", "/alive")
    assert read_command([], {"AIP_HTTP_PORT": "7000"}).server.predict is None
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        read_command([], environ | {"AIP_HTTP_PORT": "x"})
