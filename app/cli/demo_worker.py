"""A llama-rpc-server that ends with the process that started it.

Started by app.cli.demo with a pipe as stdin that nobody writes to: the pipe reports its end when
the starter closes it or dies in whatever way, and the worker then leaves at once. Works without
any platform's own call.
"""

import os
import sys
import threading

from app.cli.rpc_server import main as run_worker


def _leave_when_stdin_ends() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main() -> int:
    """Run the worker with the command line's arguments until it ends or the starter does."""
    threading.Thread(target=_leave_when_stdin_ends, name="parent-watch", daemon=True).start()
    return run_worker(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
