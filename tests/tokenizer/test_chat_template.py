"""Chat templates: llama.cpp's cases, what templates expect of their surroundings, abilities."""

import copy
from functools import lru_cache
from pathlib import Path

import pytest

from app.errors import RequestError
from app.tokenizer.chat_template import ChatTemplate
from app.tokenizer.template_sandbox import RenderLimits, TemplateLimitError, TemplateSandbox
from tests.tokenizer.cpp_cases import TemplateCase, template_cases

CONVERSATION = (
    ("system", "You are a helpful assistant"),
    ("user", "Hello"),
    ("assistant", "Hi there"),
    ("user", "Who are you"),
    ("assistant", "   I am an assistant   "),
    ("user", "Another question"),
)
N_CASES = 36
# The one case that llama.cpp leaves out with jinja, because its template needs this variable.
EXTRA = {"additional_special_tokens": ["<|role_sep|>", "<|message_sep|>", "[", "]"]}
USER = {"role": "user", "content": "hello"}
TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "<time> & 'date'", "parameters": {}},
}


@lru_cache(maxsize=1)
def all_cases(tree: Path) -> list[TemplateCase]:
    return template_cases((tree / "tests/test-chat-template.cpp").read_text("utf-8"))


def messages(turns: tuple[tuple[str, str], ...]) -> list[dict[str, object]]:
    return [{"role": role, "content": content} for role, content in turns]


def template(source: str, sandbox: TemplateSandbox) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", sandbox=sandbox)


def test_the_source_has_all_cases(llama_cpp_tree: Path) -> None:
    cases = all_cases(llama_cpp_tree)
    assert len(cases) == N_CASES
    assert sum(case.with_jinja for case in cases) == N_CASES - 1


@pytest.mark.parametrize("index", range(N_CASES))
def test_each_case_of_llama_cpp_renders_as_expected(
    index: int, llama_cpp_tree: Path, sandbox: TemplateSandbox
) -> None:
    case = all_cases(llama_cpp_tree)[index]
    bos_token = case.bos_token if case.with_jinja else "<s>"
    chat = ChatTemplate(
        case.template, bos_token=bos_token, eos_token=case.eos_token, sandbox=sandbox
    )
    extra = None if case.with_jinja else EXTRA
    prompt = chat.render(messages((*CONVERSATION, *case.extra)), extra=extra)
    assert prompt == (case.expected_jinja or case.expected)


def test_every_template_that_llama_cpp_ships_can_be_used(
    llama_cpp_tree: Path, sandbox: TemplateSandbox
) -> None:
    sources = sorted((llama_cpp_tree / "models/templates").glob("*.jinja"))
    assert len(sources) >= 60
    # Without the variable `functions`, which its makers' own server sets, this one cannot render.
    unusable = {"fireworks-ai-llama-3-firefunction-v2"}
    for path in sources:
        chat = template(path.read_text("utf-8"), sandbox)
        if path.stem in unusable:
            continue
        assert chat.caps.supports_string_content or chat.caps.supports_typed_content, path.stem
        assert "hello" in chat.render([USER]), path.stem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama-Llama-3.1-8B-Instruct", {"supports_typed_content": False}),
        ("HuggingFaceTB-SmolLM3-3B", {"supports_string_content": True}),
        ("google-gemma-2-2b-it", {"supports_system_role": False, "supports_tools": False}),
        ("Qwen-Qwen3-0.6B", {"supports_tools": True, "supports_parallel_tool_calls": True}),
        ("GLM-4.7-Flash", {"supports_preserve_reasoning": True, "supports_object_arguments": True}),
        ("openai-gpt-oss-120b", {"supports_reasoning_effort": True}),
    ],
)
def test_abilities_are_those_that_llama_cpp_finds(
    name: str, expected: dict[str, bool], llama_cpp_tree: Path, sandbox: TemplateSandbox
) -> None:
    source = (llama_cpp_tree / f"models/templates/{name}.jinja").read_text("utf-8")
    caps = template(source, sandbox).caps.as_dict()
    assert {key: caps[key] for key in expected} == expected


def test_a_template_that_needs_variables_of_the_request_keeps_its_system_message(
    sandbox: TemplateSandbox,
) -> None:
    source = "{{ must + '' }}{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}"
    turns = messages((("system", "a"), ("user", "b")))
    prompt = template(source, sandbox).render(turns, extra={"must": "!"})
    assert prompt == "!system:a user:b "


def test_text_parts_are_joined_for_a_template_that_wants_strings(
    llama_cpp_tree: Path, sandbox: TemplateSandbox
) -> None:
    path = llama_cpp_tree / "models/templates/meta-llama-Llama-3.1-8B-Instruct.jinja"
    parts = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]
    prompt = template(path.read_text("utf-8"), sandbox).render([{"role": "user", "content": parts}])
    assert "Wh\nill" in prompt


def test_tojson_writes_json_and_not_html(sandbox: TemplateSandbox) -> None:
    chat = template("{{ messages[0].content }}{{ tools | tojson(indent=2) }}", sandbox)
    text = chat.render([USER], tools=[TOOL])
    assert "<time> & 'date'" in text
    assert '\n  {\n    "type": "function"' in text
    assert template("{{ 'é' | tojson }}", sandbox).render([USER]) == '"é"'
    assert template("{{ 'é' | tojson(ensure_ascii=true) }}", sandbox).render([USER]) == '"\\u00e9"'


def test_what_templates_expect_is_there(sandbox: TemplateSandbox) -> None:
    def text(source: str, **extra: object) -> str:
        return template(source, sandbox).render([USER], extra=extra)

    assert text("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert (
        text("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "012"
    )
    assert text("{% generation %}said{% endgeneration %}") == "said"
    assert text("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"
    assert text("{{ strftime_now('%Y')[:2] }}") == "20"
    assert text("{{ '<b>' | safe + '<i>' }}") == "<b><i>"
    assert text("{{ messages | map(attribute='role') | tojson }}") == '["user"]'
    assert text("{{ tools is defined }}") == "False"
    assert text("{{ add_generation_prompt }}{{ enable_thinking }}") == "TrueTrue"
    assert text("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_no_generation_prompt_is_written_when_none_is_asked(sandbox: TemplateSandbox) -> None:
    chat = template("{% if add_generation_prompt %}go{% endif %}", sandbox)
    assert chat.render([USER], add_generation_prompt=False) == ""


def test_the_messages_given_are_not_changed(sandbox: TemplateSandbox) -> None:
    chat = template("{{ messages[0].content }}{{ 1 if messages[0].role == 'system' }}", sandbox)
    given = [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]
    before = copy.deepcopy(given)
    chat.render(given)
    assert given == before


def test_a_template_without_end_fails_once_and_not_once_for_each_ability() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    sandbox = TemplateSandbox(RenderLimits(time_s=0.3))
    chat = template(source, sandbox)
    for _ in range(2):
        with pytest.raises(TemplateLimitError):
            chat.render([USER])
    chat.close()


def test_the_refusal_of_a_template_is_an_error_of_the_request(sandbox: TemplateSandbox) -> None:
    chat = template("{{ raise_exception('Only user messages, please') }}", sandbox)
    with pytest.raises(RequestError, match="Only user messages, please"):
        chat.render([USER])
