"""Brings the model file here: it is there, in the cache of Hugging Face, or the demo's."""

import logging
from contextlib import ExitStack
from pathlib import Path

from app.cli.options import Command
from app.errors import ConfigError

_log = logging.getLogger(__name__)


def prepare_model(command: Command, cleanup: ExitStack) -> tuple[Path, tuple[str, ...]]:
    """Return the model's path and the workers to use; `cleanup` stops those started here.

    Raises: ConfigError when there is no such model, DeviceLostError when a worker does not start.
    """
    source, endpoints = command.source, command.engine.rpc_endpoints
    if source.path is not None:
        if not source.path.is_file():
            raise ConfigError(f"{source.path}: no such file")
        return source.path, endpoints
    if source.hf is not None:
        from app.cli.hf_files import resolve

        return resolve(source.hf), endpoints
    from app.cli.demo import ensure_demo_model, start_demo_workers
    from app.cli.progress import progress_bar

    with progress_bar("fetching the demo model") as progress:
        path = ensure_demo_model(progress)
    if not endpoints:
        endpoints = cleanup.enter_context(start_demo_workers(flags=source.demo_flags)).endpoints
    return path, endpoints
