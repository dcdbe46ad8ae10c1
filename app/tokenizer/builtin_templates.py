"""Chat templates that `--chat-template NAME` can ask for, as jinja sources.

Used by `chat_template`, for models whose file has no template or a poor one. The names and the
prompts they give are those of llama.cpp's built-in templates (src/llama-chat.cpp). Most formats
differ only in what stands around a message, so a row says just that; the few with rules of their
own are written out below.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from app.tokenizer.template_forms import TRIMMED, Around, by_role, llama2, mistral, same_for_all

# Gemma has no system role: its text opens the next user turn.
_GEMMA: Final = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
  {%- set content = (message.content or '') | trim -%}
  {%- if message.role == 'system' -%}
    {%- set ns.system = ns.system ~ content -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<start_of_turn>model\\n' ~ content ~ '<end_of_turn>\\n' -}}
  {%- else -%}
    {{- '<start_of_turn>' ~ message.role ~ '\\n' -}}
    {{- ns.system ~ '\\n\\n' if ns.system -}}
    {{- content ~ '<end_of_turn>\\n' -}}
    {%- set ns.system = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<start_of_turn>model\\n' -}}
{%- endif -%}"""

_ORION: Final = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
  {%- set content = message.content or '' -%}
  {%- if message.role == 'system' -%}
    {%- set ns.system = ns.system ~ content -%}
  {%- elif message.role == 'user' -%}
    {{- 'Human: ' ~ (ns.system ~ '\\n\\n' if ns.system else '') -}}
    {{- content ~ '\\n\\nAssistant: </s>' -}}
    {%- set ns.system = '' -%}
  {%- else -%}
    {{- content ~ '</s>' -}}
  {%- endif -%}
{%- endfor -%}"""

_OPENCHAT: Final = """\
{%- for message in messages -%}
  {%- if message.role != 'system' -%}
    {{- 'GPT4 Correct ' ~ message.role[:1] | upper ~ message.role[1:] ~ ': ' -}}
  {%- endif -%}
  {{- (message.content or '') ~ '<|end_of_turn|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'GPT4 Correct Assistant:' -}}
{%- endif -%}"""

_MONARCH: Final = """\
{%- for message in messages -%}
  {{- ('' if loop.first else '<s>') ~ message.role ~ '\\n' ~ (message.content or '') ~ '</s>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<s>assistant\\n' -}}
{%- endif -%}"""

CHATML: Final = same_for_all("<|im_start|>{role}\n", "<|im_end|>\n", "<|im_start|>assistant\n")
"""The most common format, used where a model file has no template."""

_ROLE_LINE: Final = "<|{role}|>\n"
_ANSWER_LINE: Final = "<|assistant|>\n"
_SYS_MARKS: Final[Around] = ("<<SYS>>\n", "\n<</SYS>>\n\n")


def _mistral_v7(space: str) -> str:
    roles = {"system": (f"[SYSTEM_PROMPT]{space}", "[/SYSTEM_PROMPT]")}
    roles["user"] = (f"[INST]{space}", "[/INST]")
    return by_role("", roles, other=(space, "</s>"))


def _vicuna(system: Around) -> str:
    roles = {"system": system, "user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    return by_role("ASSISTANT:", roles)


_EXAONE: Final[Mapping[str, Around]] = {
    "system": ("[|system|]", "[|endofturn|]\n"),
    "user": ("[|user|]", "\n"),
    "assistant": ("[|assistant|]", "[|endofturn|]\n"),
}
_EXAONE4: Final[Mapping[str, Around]] = {**_EXAONE, "tool": ("[|tool|]", "[|endofturn|]\n")}

_DEEPSEEK: Final[Mapping[str, Around]] = {
    "system": ("", ""),
    "user": ("### Instruction:\n", "\n"),
    "assistant": ("### Response:\n", "\n<|EOT|>\n"),
}
_DEEPSEEK2: Final[Mapping[str, Around]] = {
    "system": ("", "\n\n"),
    "user": ("User: ", "\n\n"),
    "assistant": ("Assistant: ", "<｜end▁of▁sentence｜>"),
}
_DEEPSEEK3: Final[Mapping[str, Around]] = {
    "system": ("", "\n\n"),
    "user": ("<｜User｜>", ""),
    "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
}
_COMMAND_R: Final[Mapping[str, Around]] = {
    role: (f"<|START_OF_TURN_TOKEN|><|{name}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
    for role, name in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))
}
_KIMI_K2: Final[Mapping[str, Around]] = {
    role: (f"<|im_{kind}|>{role}<|im_middle|>", "<|im_end|>")
    for role, kind in (
        ("system", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "system"),
    )
}
_SMOLVLM: Final[Mapping[str, Around]] = {
    "system": ("", "\n\n"),
    "user": ("User: ", "<end_of_utterance>\n"),
}

BUILTIN_TEMPLATES: Final = MappingProxyType(
    {
        "chatml": CHATML,
        "llama2": llama2(("", "\n")),
        "llama2-sys": llama2(_SYS_MARKS),
        "llama2-sys-bos": llama2(_SYS_MARKS, later_opening="<s>[INST] "),
        "llama2-sys-strip": llama2(_SYS_MARKS, trim=True),
        "llama3": same_for_all(
            "<|start_header_id|>{role}<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            trim=True,
        ),
        "llama4": same_for_all(
            "<|header_start|>{role}<|header_end|>\n\n",
            "<|eot|>",
            "<|header_start|>assistant<|header_end|>\n\n",
            trim=True,
        ),
        "mistral-v1": mistral(before=" ", after=" "),
        "mistral-v3": mistral(after=" ", answer=TRIMMED),
        "mistral-v3-tekken": mistral(),
        "mistral-v7": _mistral_v7(" "),
        "mistral-v7-tekken": _mistral_v7(""),
        "phi3": same_for_all(_ROLE_LINE, "<|end|>\n", _ANSWER_LINE),
        "phi4": same_for_all(
            "<|im_start|>{role}<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"
        ),
        "falcon3": same_for_all(_ROLE_LINE, "\n", _ANSWER_LINE),
        "zephyr": same_for_all(_ROLE_LINE, "<|endoftext|>\n", _ANSWER_LINE),
        "monarch": _MONARCH,
        "gemma": _GEMMA,
        "orion": _ORION,
        "openchat": _OPENCHAT,
        "vicuna": _vicuna(("", "\n\n")),
        "vicuna-orca": _vicuna(("SYSTEM: ", "\n")),
        "deepseek": by_role("### Response:\n", _DEEPSEEK),
        "deepseek2": by_role("Assistant:", _DEEPSEEK2),
        "deepseek3": by_role("<｜Assistant｜>", _DEEPSEEK3),
        "command-r": by_role(_COMMAND_R["assistant"][0], _COMMAND_R, trim=True),
        "chatglm3": same_for_all("<|{role}|>\n ", "", "<|assistant|>", start="[gMASK]sop"),
        "chatglm4": same_for_all(_ROLE_LINE, "", _ANSWER_LINE, start="[gMASK]<sop>"),
        "glmedge": same_for_all(_ROLE_LINE, "", "<|assistant|>"),
        "minicpm": by_role("", {"user": ("<用户>", "<AI>")}, trim=True, other=("", "")),
        "exaone3": by_role("[|assistant|]", _EXAONE, trim=True),
        "exaone4": by_role("[|assistant|]", _EXAONE4, trim=True),
        "megrez": same_for_all(
            "<|role_start|>{role}<|role_end|>",
            "<|turn_end|>",
            "<|role_start|>assistant<|role_end|>",
        ),
        "granite": same_for_all(
            "<|start_of_role|>{role}<|end_of_role|>",
            "<|end_of_text|>\n",
            "<|start_of_role|>assistant<|end_of_role|>",
        ),
        "smolvlm": by_role(
            "Assistant:",
            _SMOLVLM,
            start="<|im_start|>",
            other=("Assistant: ", "<end_of_utterance>\n"),
        ),
        "kimi-k2": by_role(_KIMI_K2["assistant"][0], _KIMI_K2, other=("", "<|im_end|>")),
        "solar-open": same_for_all("<|begin|>{role}<|content|>", "<|end|>", "<|begin|>assistant"),
    }
)
"""Name → jinja source."""
