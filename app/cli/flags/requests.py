"""Flags that give requests their defaults; the sampling ones come from app.sampling.params."""

from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option, Repeat, Value
from app.sampling.flags import biases, breakers
from app.sampling.params import PARAMS, Param

SAMPLING_DEST: Final = "sampling:"
"""Before the name of a sampling parameter and the number of one of its flags."""

_ADDING_UP: Final = (biases, breakers)

REQUESTS: Final = Group(
    "defaults of requests",
    (
        Option(
            dest="predict",
            names=("-n", "--predict", "--n-predict"),
            read=readers.within(-1),
            metavar="N",
            env="LLAMA_ARG_N_PREDICT",
            default=-1,
            help="most tokens to generate, -1 for no limit",
        ),
        Option(
            dest="keep",
            names=("--keep",),
            read=readers.within(-1),
            metavar="N",
            default=0,
            help="tokens of the prompt to keep when the context is full, -1 for all",
        ),
        Option(
            dest="cache_prompt",
            names=("--cache-prompt",),
            off_names=("--no-cache-prompt",),
            env="LLAMA_ARG_CACHE_PROMPT",
            default=True,
            help="reuse what a slot knows of a prompt",
        ),
        Option(
            dest="reverse_prompt",
            names=("-r", "--reverse-prompt"),
            read=readers.text,
            metavar="PROMPT",
            repeat=Repeat.APPEND,
            help="end the generation at this text; may be repeated",
        ),
        Option(
            dest="escape",
            names=("-e", "--escape"),
            off_names=("--no-escape",),
            default=True,
            help=r"read \n, \t and the like in texts of flags",
        ),
        Option(
            dest="grammar",
            names=("--grammar",),
            read=readers.text,
            metavar="GRAMMAR",
            help="grammar (GBNF) of every answer",
        ),
        Option(
            dest="grammar_file",
            names=("--grammar-file",),
            read=readers.text,
            metavar="FNAME",
            help="file with the grammar of every answer",
        ),
        Option(
            dest="json_schema",
            names=("-j", "--json-schema"),
            read=readers.text,
            metavar="SCHEMA",
            help="JSON schema of every answer",
        ),
        Option(
            dest="json_schema_file",
            names=("-jf", "--json-schema-file"),
            read=readers.text,
            metavar="FILE",
            help="file with the JSON schema of every answer",
        ),
    ),
)


def sampling_group() -> Group:
    """Return one option for each flag of each sampling parameter."""
    return Group("sampling", tuple(o for param in PARAMS for o in _options(param)))


def sampling_dest(param: Param, flag: int) -> str:
    """Return the dest of one flag of a sampling parameter."""
    return f"{SAMPLING_DEST}{param.name}:{flag}"


def _options(param: Param) -> list[Option]:
    """Texts are kept as they are: the parameter's own rules read them once all are there."""
    return [
        Option(
            dest=sampling_dest(param, i),
            names=flag.names,
            read=None if flag.metavar is None else _one_text,
            metavar=flag.metavar or "",
            env=flag.env or "",
            default=False if flag.metavar is None else None,
            repeat=Repeat.APPEND if flag.value in _ADDING_UP else Repeat.LAST,
            help=param.help,
        )
        for i, flag in enumerate(param.flags)
    ]


def _one_text(value: str) -> Value:
    return (value,)
