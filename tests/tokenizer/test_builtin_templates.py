"""Built-in templates against llama.cpp's, and the ways out of a missing one."""

import pytest

from app.tokenizer.builtin_templates import BUILTIN_TEMPLATES, CHATML
from app.tokenizer.chat_template import ChatTemplate
from app.tokenizer.template_sandbox import TemplateSandbox
from tests.tokenizer.golden_data import builtin_templates

GOLDEN = builtin_templates()


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_a_built_in_template_writes_the_prompt_of_llama_cpp(
    name: str, sandbox: TemplateSandbox
) -> None:
    prompts = []
    for turns in GOLDEN["conversations"]:
        for add_generation_prompt in (False, True):
            variables = {
                "messages": [{"role": role, "content": content} for role, content in turns],
                "add_generation_prompt": add_generation_prompt,
            }
            prompts.append(sandbox.render(BUILTIN_TEMPLATES[name], variables))
    assert prompts == GOLDEN["outputs"][name]


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_a_message_without_content_is_an_empty_one(name: str, sandbox: TemplateSandbox) -> None:
    source = BUILTIN_TEMPLATES[name]
    empty = {"messages": [{"role": "user", "content": ""}]}
    assert sandbox.render(source, {"messages": [{"role": "user", "content": None}]}) == (
        sandbox.render(source, empty)
    )


def test_chatml_takes_text_and_joins_parts(sandbox: TemplateSandbox) -> None:
    chat = ChatTemplate(CHATML, bos_token="", eos_token="", sandbox=sandbox)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat.render([{"role": "user", "content": parts}]) == (
        "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
    )
