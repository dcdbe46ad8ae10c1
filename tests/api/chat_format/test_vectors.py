"""llama.cpp's own cases of what models write: tests/test-chat.cpp, with its templates.

As there, white space at the ends of texts does not count, and arguments are compared as values. Not
run are cases whose tools are made on the spot, and those with a schema for the answer, which this
server lets begin with JSON only.
"""

import json
import tarfile
from functools import lru_cache
from pathlib import Path

import pytest

from app.api.chat_format.formats import detect_format
from app.api.chat_format.tools import Choice, ToolUse
from app.api.chat_prompt import prepare
from app.api.conversation import Continued, Conversation
from app.tokenizer.chat_template import ChatTemplate
from app.tokenizer.template_sandbox import TemplateSandbox
from tests.api.chat_format import cpp_chat
from tests.api.chat_format.answers import read
from tests.api.chat_format.cpp_chat import Case, Said
from tests.helpers.assets import asset
from tests.helpers.fake_engine import ByteTokenizer

NOT_READ = {
    "Apertus-8B-Instruct.jinja": "calls with the function's name as key",
    "Cohere2MoE.jinja": "marked text, reasoning opened in a way of its own",
    "GigaChat3-10B-A1.8B.jinja": "function_call with a role separator",
    "GigaChat3.1-10B-A1.8B.jinja": "function_call with a role separator",
    "Kimi-K3.jinja": "open and close tags for everything",
    "LFM2-8B-A1B.jinja": "calls in Python",
    "LFM2.5-8B-A1B.jinja": "calls in Python",
    "LFM2.5-Instruct.jinja": "calls in Python",
    "MiniMax-M3.jinja": "nested tags",
    "deepseek-ai-DeepSeek-V3.2.jinja": "DSML",
    "deepseek-ai-DeepSeek-V4-Flash-0731.jinja": "DSML",
    "deepseek-ai-DeepSeek-V4.jinja": "DSML",
    "google-gemma-4-31B-it.jinja": "calls in a dialect of JSON",
    "inclusionai-ling-3.0-flash.jinja": "tags of its own",
    "llm-jp-llm-jp-4.1-8b-thinking.jinja": "channels with spaces and several calls",
    "muse-glimmer.jinja": "recipients of its own",
    "openbmb-MiniCPM5-1B.jinja": "function tags with names in quotes",
}
OTHERWISE = {
    ("Apriel-1.6-15b-Thinker-fixed.jinja", "I'm\nthinking\n[BEGIN"): "the prompt's words are not "
    "the model's reasoning",
    ("Qwen3.5-4B.jinja", "<think>\n\n</think>"): "a second <think> is no reasoning",
    ("unsloth-Apriel-1.5.jinja", "world!"): "reasoning that is continued is written as reasoning",
    ("moonshotai-Kimi-K2.jinja", "world!"): "the template has no place for reasoning",
    ("moonshotai-Kimi-K2.jinja", " thinking</think>"): "the template has no place for reasoning",
}
"""Template and beginning of the text → why it is read in another way here."""


@lru_cache(maxsize=1)
def _source(archive: Path) -> tuple[str, dict[str, str]]:
    """The test's source, and the templates by name."""
    templates: dict[str, str] = {}
    source = ""
    with tarfile.open(archive) as tar:
        for member in tar:
            is_template = "/models/templates/" in member.name and member.name.endswith(".jinja")
            is_source = member.name.endswith("llama.cpp/tests/test-chat.cpp")
            if (is_template or is_source) and (file := tar.extractfile(member)) is not None:
                text = file.read().decode()
                if is_source:
                    source = cpp_chat.without_comments(text)
                else:
                    templates[Path(member.name).name] = text
    return source, templates


def _is_otherwise(case: Case) -> bool:
    return any(case.template == name and case.text.startswith(s) for name, s in OTHERWISE)


def _conversation(case: Case, source: str) -> Conversation | None:
    """What the case asks for, or None when this reader does not understand it."""
    known, said = cpp_chat.tools(source), cpp_chat.messages(source)
    if case.expected is None or "json_schema" in case.options or not known.keys() >= {*case.tools}:
        return None
    continued = None
    if case.messages:
        if case.messages[-1] not in said or "continue_final_message" not in case.options:
            return None
        last = said[case.messages[-1]]
        in_reasoning = case.options["continue_final_message"].endswith("REASONING")
        continued = Continued(last.reasoning, last.content, in_reasoning)
    tools = [known[name] for name in case.tools]
    thinks = case.options.get("enable_thinking", "true") == "true"
    return Conversation(
        messages=[{"role": "user", "content": "Hey there!"}],
        tools=[
            {
                "type": "function",
                "function": {"name": t.name, "description": "", "parameters": t.parameters},
            }
            for t in tools
        ],
        use=ToolUse(tuple(tools), Choice.AUTO) if tools else ToolUse(),
        parallel="parallel_tool_calls" in case.options,
        continued=continued,
        add_generation_prompt=True,
        kwargs={"enable_thinking": thinks},
        enable_thinking=thinks,
        extracts_reasoning=not case.options.get("reasoning_format", "NONE").endswith("NONE"),
        parses=True,
        budget=-1,
        budget_message="",
    )


def _read(case: Case, conversation: Conversation, template: ChatTemplate) -> Said:
    """What the case's text says, with what was continued, as llama.cpp's test has it."""
    prompt = prepare(conversation, template, ByteTokenizer(), None)
    message = read(prompt.parsing, [*case.text])
    content, reasoning = message.content, message.reasoning
    if conversation.continued is not None:
        content = conversation.continued.content + content
        if prompt.parsing.format.reasoning or prompt.parsing.format.name == "gpt-oss":
            reasoning = conversation.continued.reasoning + reasoning
    return Said(content, reasoning, tuple((c.name, c.arguments) for c in message.tool_calls))


def _comparable(said: Said) -> object:
    calls = [(name, _value(arguments)) for name, arguments in said.calls]
    return said.content.strip(), said.reasoning.strip(), calls


def _value(arguments: str) -> object:
    try:
        value: object = json.loads(arguments)
    except ValueError:
        return "".join(arguments.split())
    return value


@pytest.mark.slow
def test_cases_say_the_same_here() -> None:
    source, templates = _source(asset("llama_cpp_sdist"))
    sandbox = TemplateSandbox()
    made: dict[str, ChatTemplate] = {}
    wrong, n_read = [], 0
    for case in cpp_chat.cases(source):
        conversation = _conversation(case, source)
        if conversation is None or case.template in NOT_READ or _is_otherwise(case):
            continue
        template = made.setdefault(
            case.template,
            ChatTemplate(templates[case.template], bos_token="", eos_token="", sandbox=sandbox),
        )
        assert case.expected is not None
        n_read += 1
        got = _read(case, conversation, template)
        if _comparable(got) != _comparable(case.expected):
            wrong.append((case.template, case.text, case.expected, got))
    sandbox.close()
    assert wrong == []
    # As many as there are in the pinned source, so that none is lost to the reader.
    assert n_read == 241


def test_templates_that_are_not_read_are_not_taken_for_another_format() -> None:
    _, templates = _source(asset("llama_cpp_sdist"))
    for name in NOT_READ.keys() & templates.keys():
        found = detect_format(templates[name], supports_tools=True)
        assert found.name in ("json", "gpt-oss"), name
