"""Flags about what is kept of a conversation and for how long: they become parts of EngineConfig
and ServerSettings.
"""

from typing import Final

from app.cli.flags import readers
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
        Option(
            dest="slot_save_path",
            names=("--slot-save-path",),
            read=readers.text,
            metavar="PATH",
            help="folder that POST /slots/{id} saves slots in and restores them from",
        ),
        Option(
            dest="cache_ram",
            names=("-cram", "--cache-ram"),
            read=readers.within(-1),
            metavar="N",
            env="LLAMA_ARG_CACHE_RAM",
            default=0,
            help="MiB of memory for prompts that no slot holds any more, -1 for no limit, 0 for "
            "none; from workers each crosses the network",
        ),
        Option(
            dest="cache_idle_slots",
            names=("--cache-idle-slots",),
            off_names=("--no-cache-idle-slots",),
            env="LLAMA_ARG_CACHE_IDLE_SLOTS",
            default=True,
            help="with --cache-ram and slots that share one pool, a new request has the idle slots "
            "moved there",
        ),
        Option(
            dest="sleep_idle_seconds",
            names=("--sleep-idle-seconds",),
            read=readers.within(-1),
            metavar="SECONDS",
            default=-1,
            help="unload the model when nothing was asked for so long, until something is; -1 for "
            "never",
        ),
    ),
)
