"""Words for tensor types that cannot be used, so that a refusal names all of them at once."""

from collections.abc import Mapping
from typing import Final

from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType

# Numbers that ggml once gave out and has taken back.
_REMOVED_TYPES: Final = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


def type_label(number: int) -> str:
    """Return ggml's name of a type number, or the number itself where it has none."""
    if number in TRAITS:
        return TRAITS[GGMLType(number)].name
    return _REMOVED_TYPES.get(number, f"number {number}")


def describe_types(found: Mapping[str, list[str]]) -> str:
    """Describe unsupported types (name → tensors) in one sentence."""
    each = ", ".join(
        f"{name} ({len(tensors)} tensors, first '{tensors[0]}')" for name, tensors in found.items()
    )
    known = ", ".join(TRAITS[type_].name for type_ in sorted(MODEL_TYPES))
    return f"unsupported tensor types: {each}; expected {known}"
