"""The forms of a `prompt`: text, ids, a mix of both, an object with `prompt_string`, or a list.

An array that holds any number is one prompt; any other array is a list of prompts. BOS is added to
text that begins a prompt. See tokenize_input_prompts in llama.cpp's
tools/server/server-common.cpp.
"""

from typing import Final

from app.api import fields
from app.api.errors import SERVER, ApiError
from app.api.json_value import Json, type_name
from app.errors import RequestError
from app.tokenizer.base import Tokenizer

Tokens = tuple[int, ...]

MAX_PROMPTS: Final = 1024


def tokenize_prompts(tokenizer: Tokenizer, prompt: Json) -> list[Tokens]:
    """Return the ids of every prompt in the value of a `prompt` field, at least one.

    Raises: RequestError for a wrong form or id, ApiError for media.
    """
    if isinstance(prompt, list) and not any(is_id(item) for item in prompt):
        if not prompt:
            raise RequestError("'prompt' must not be empty", "prompt")
        if len(prompt) > MAX_PROMPTS:
            raise RequestError(
                f"{len(prompt)} prompts are too many for one request: expected up to {MAX_PROMPTS}",
                "prompt",
            )
        return [one_prompt(tokenizer, item) for item in prompt]
    return [one_prompt(tokenizer, prompt)]


def tokenize_mixed(
    tokenizer: Tokenizer, value: Json, name: str, *, add_special: bool, parse_special: bool = True
) -> Tokens:
    """Return the ids of a text, or of an array of texts and ids.

    `add_special` concerns only text at the very beginning. Raises: RequestError.
    """
    if isinstance(value, str):
        return tuple(tokenizer.encode(value, add_special=add_special, parse_special=parse_special))
    if not isinstance(value, list):
        fields.wrong_type(name, value, "a string or an array of strings and token ids")
    ids: list[int] = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            first = add_special and i == 0
            ids += tokenizer.encode(item, add_special=first, parse_special=parse_special)
        else:
            ids.append(_token_id(tokenizer, item, f"{name}[{i}]"))
    return tuple(ids)


def token_ids(tokenizer: Tokenizer, value: Json, name: str) -> Tokens:
    """Return an array of token ids, each of them in the vocabulary. Raises: RequestError."""
    if not isinstance(value, list):
        fields.wrong_type(name, value, "an array of token ids")
    return tuple(_token_id(tokenizer, item, f"{name}[{i}]") for i, item in enumerate(value))


def one_prompt(tokenizer: Tokenizer, prompt: Json, name: str = "prompt") -> Tokens:
    """Return the ids of one prompt; `name` is the field that it stands in.

    Raises: RequestError for a wrong form or id, ApiError for media.
    """
    match prompt:
        case str() | list():
            return tokenize_mixed(tokenizer, prompt, name, add_special=True)
        case {"prompt_string": text, **others}:
            if others.get("multimodal_data") is not None:
                message = (
                    "Multimodal data provided, but model does not support multimodal requests."
                )
                raise ApiError(SERVER, message)
            return tokenize_mixed(tokenizer, text, "prompt_string", add_special=True)
        case _:
            raise RequestError(
                f"'{name}' must be a string, an array of strings and token ids, or an object with "
                f"'prompt_string', not {type_name(prompt)}",
                name,
            )


def is_id(value: Json) -> bool:
    """Return whether a value could be a token id."""
    return isinstance(value, int) and not isinstance(value, bool)


def _token_id(tokenizer: Tokenizer, value: Json, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        fields.wrong_type(name, value, "a token id or a string")
    tokenizer.vocab.check_id(value)
    return value
