"""Flags about what is kept of a conversation and for how long: they become parts of EngineConfig
and ServerSettings.
"""

from typing import Final

from app.cli.flags.option import Group, Option

KEEPING: Final = Group(
    "keeping",
    (
        Option(
            dest="context_shift",
            names=("--context-shift",),
            off_names=("--no-context-shift",),
            env="LLAMA_ARG_CONTEXT_SHIFT",
            default=False,
            help="go on when the context is full: forget the middle and compute the rest again",
        ),
    ),
)
