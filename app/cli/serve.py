"""llama-serve: an OpenAI-compatible server that pools workers behind one model.

The port listens first; then HTTP answers 503 while a thread finds, downloads and loads the model.
SIGTERM and SIGINT end everything within two seconds, also during the load; a second one ends the
process at once. A model that cannot be loaded is told on stderr, with exit status 1.
"""

import logging
import os
import sys
from collections.abc import Sequence

from app.cli.flags import table
from app.cli.flags.completion import completion_script
from app.cli.flags.config_files import config_paths, read_config_files
from app.cli.flags.environment import heed_no_rdma
from app.cli.hf_files import cache_folder, cached_models
from app.cli.options import Command, read_command
from app.cli.pipes import hush_stdout
from app.errors import LlamaServeError
from app.logs import setup_logging
from app.version import BUILD_INFO, __version__

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; return the exit status."""
    # Threads that spin while they wait cost a shared machine a hundredfold; torch's library reads
    # this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        files = read_config_files(config_paths(os.environ))
        command = read_command(sys.argv[1:] if argv is None else argv, os.environ, files)
        if (text := _printed(command)) is not None:
            print(text, flush=True)
            return 0
        setup_logging(command.logs)
        heed_no_rdma(os.environ)
        for file in files:
            _log.info("configuration from %s", file.path)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        for warning in command.warnings:
            _log.warning("%s", warning)
        if command.list_devices:
            from app.cli.list_devices import list_devices

            engine = command.engine
            print(list_devices(engine.rpc_endpoints, engine.rpc_secret, engine.rpc_tls), flush=True)
            return 0
        return _serve(command)
    except LlamaServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        hush_stdout()
        return 1


def _printed(command: Command) -> str | None:
    """Return what a command that only prints something prints."""
    if command.show_help:
        return table.usage()
    if command.show_version:
        return f"llama-serve {__version__} ({BUILD_INFO})"
    if command.show_completion:
        return completion_script("llama-serve", table.OPTIONS)
    if command.list_cache:
        models = cached_models(cache_folder(os.environ))
        lines = [f"{i:4}. {model}" for i, model in enumerate(models, 1)]
        return "\n".join([f"number of models in cache: {len(models)}", *lines])
    return None


def _serve(command: Command) -> int:
    if command.source.is_empty:
        _log.warning(
            "no model: name a file with -m, a repository with -hf, or try --demo; "
            "this server can only say that it has none"
        )
    from app.cli.listen import open_listeners, remove_unix_paths

    listeners = open_listeners(command.server)
    try:
        from app.cli.server_process import ServerProcess

        for listener in listeners:
            _log.info("starting on %s", listener.url)
        return ServerProcess(command, listeners).run()
    finally:
        remove_unix_paths(listeners)
