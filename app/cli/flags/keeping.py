"""Flags about what is kept of a conversation and for how long: they become parts of EngineConfig
and ServerSettings.
"""

from pathlib import Path
from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option
from app.cli.flags.parser import Parsed
from app.errors import ConfigError

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


def sleep_idle_s(parsed: Parsed) -> float | None:
    """Return seconds of idleness before the model is unloaded, None for never.

    Raises: ConfigError.
    """
    seconds = parsed.integer("sleep_idle_seconds")
    if seconds == 0:
        raise ConfigError("--sleep-idle-seconds 0: expected 1 or more, or -1")
    return None if seconds < 0 else float(seconds)


def slot_folder(parsed: Parsed) -> Path | None:
    """Return the folder of saved slots, None for none. Raises: ConfigError."""
    path = parsed.text("slot_save_path")
    if not path:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--slot-save-path {path}: expected a folder")
    return folder
