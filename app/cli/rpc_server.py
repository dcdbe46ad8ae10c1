"""llama-rpc-server: lends this machine's devices to main hosts that speak the ggml RPC protocol.

Flags are those of the stock ggml-rpc-server, `--protocol`, `--profile`, `--list-ops` and those of
`app.cli.worker_security` and `worker_storage`. The port is taken first, so that a busy one is
reported at once, and opened last, when the devices are ready.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from app.cli.flags.environment import (
    ENVIRONMENT,
    CpuChoice,
    cpu_choice,
    heed_no_rdma,
)
from app.cli.flags.parser import parse
from app.cli.pipes import hush_stdout
from app.cli.worker_security import Security, add_security_flags, open_warning, read_security
from app.cli.worker_storage import Storage, add_storage_flags, read_storage, storage_words
from app.devices.base import Device
from app.devices.op_list import list_ops
from app.devices.profile import profile_text, start_profiles
from app.errors import LlamaServeError
from app.logs import DEFAULT_VERBOSITY, MAX_VERBOSITY, LogSettings, setup_logging
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.courier import CourierService
from app.rpc_backend.wire.constants import DEFAULT_PORT, NEWEST, VERSIONS
from app.rpc_backend.worker.server import RpcServer, ServerSettings, bind
from app.rpc_backend.worker.session import ALL_FIELDS, FIELDS
from app.rpc_backend.worker.tensor_store import FilesAndCache
from app.version import BUILD_INFO

log = logging.getLogger("app.cli.rpc_server")

_MIB: Final = 1024 * 1024
_DEBUG_HELP: Final = "1 names each request in the log, 2 shows its fields, 3 cuts none of them"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_DEBUG_LEVELS: Final = {1: logging.DEBUG, 2: FIELDS, 3: ALL_FIELDS}


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags and the environment say; `devices` None means all accelerators or the CPU."""

    host: str
    port: int
    devices: tuple[str, ...] | None
    threads: int | None
    storage: Storage
    version: int
    debug: int
    cpu: CpuChoice
    profile: bool
    lists_ops: bool
    security: Security


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker until SIGTERM or SIGINT; return the exit status."""
    # torch's idle threads would otherwise spin on cores that other workers of this machine need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv, os.environ)
        return _list_ops(options) if options.lists_ops else _run(options)
    except LlamaServeError as error:
        print(f"llama-rpc-server: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        hush_stdout()
        return 1
    except KeyboardInterrupt:
        # While it starts; afterwards the signal has a handler.
        return 128 + signal.SIGINT


def parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read flags and environment.

    Raises: ConfigError for an environment variable that cannot be honoured.
    """
    args = _parser().parse_args(argv)
    environment = parse(ENVIRONMENT.options, (), environ)
    names = tuple(name for name in (args.device or "").replace("/", ",").split(",") if name)
    return Options(
        host=args.host,
        port=args.port,
        devices=names or None,
        threads=args.threads,
        storage=read_storage(args, environment, environ),
        version=args.protocol,
        debug=_debug_level(environ.get("GGML_RPC_DEBUG", "")),
        cpu=cpu_choice(environment),
        profile=args.profile,
        lists_ops=args.list_ops,
        security=read_security(args, environment),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llama-rpc-server",
        description="Lends this machine's devices to main hosts over the ggml RPC protocol.",
        epilog="environment: "
        + "; ".join(f"{row.env}={row.metavar}: {row.help}" for row in ENVIRONMENT.options)
        + f"; GGML_RPC_DEBUG=LEVEL: {_DEBUG_HELP}",
    )
    add = parser.add_argument
    add("-H", "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("-p", "--port", type=_port, default=DEFAULT_PORT, help="port (default: %(default)s)")
    add("-d", "--device", metavar="DEV1,DEV2", help="devices: CUDA0, XPU0, MPS, CPU, ...")
    add("-t", "--threads", type=_positive, help="threads of the CPU device")
    add_storage_flags(parser)
    versions = sorted(VERSIONS)
    add(
        "--protocol",
        type=int,
        choices=versions,
        default=NEWEST,
        help="protocol version to speak: that of the main host (default: %(default)s)",
    )
    add(
        "--profile",
        action="store_true",
        help="time every kind of operation and print the sums of each device at the end; costs "
        "some speed",
    )
    add(
        "--list-ops",
        action="store_true",
        help="print what each device can run, a line `DEVICE<TAB>OPERATION<TAB>limits` per "
        "operation, and exit",
    )
    add_security_flags(parser)
    add("--version", action="version", version=BUILD_INFO)
    return parser


def _port(text: str) -> int:
    if not (_is_number(text) and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"'{text}': expected 0 (any free one) to 65535")
    return int(text)


def _positive(text: str) -> int:
    if not (_is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(f"'{text}': expected 1 or more")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _debug_level(text: str) -> int:
    """Read GGML_RPC_DEBUG; as with the stock worker, any text turns the log on."""
    if not text:
        return 0
    return min(int(text), 3) if text.isascii() and text.isdigit() else 1


def _run(options: Options) -> int:
    setup_logging(LogSettings(MAX_VERBOSITY if options.debug else DEFAULT_VERBOSITY))
    heed_no_rdma(os.environ)
    if options.debug:
        logging.getLogger("app.rpc_backend").setLevel(_DEBUG_LEVELS[options.debug])
    listener = bind(options.host, options.port)
    security = options.security
    for text in (*security.remarks, open_warning(options.host, security)):
        if text:
            print(text, file=sys.stderr)
    store = options.storage.open()
    with listener:
        devices = _open_devices(options)
        if options.profile:
            start_profiles(devices)
        server = RpcServer(listener, devices, _settings(options, store))
        _stop_on_signals(server)
        _announce(server.port, options, store, devices)
        all_left = server.serve()
        store.close()
        if options.profile:
            for device in devices:
                print(profile_text(device), file=sys.stderr, flush=True)
        if not all_left:
            # A thread inside a kernel cannot be ended, and the interpreter must not be taken down
            # around it.
            logging.shutdown()
            os._exit(0)
        for device in devices:
            device.close()
    return 0


def _open_devices(options: Options) -> list[Device]:
    # torch takes most of the start-up time; a busy port or a wrong flag need not wait for it.
    from app.devices.registry import open_devices

    return open_devices(
        options.devices,
        options.threads,
        executor=options.cpu.executor,
        level=options.cpu.level,
    )


def _list_ops(options: Options) -> int:
    """Print what each device can run, one operation a line."""
    for device in _open_devices(options):
        print("\n".join(list_ops(device)), flush=True)
        device.close()
    return 0


def _stop_on_signals(server: RpcServer) -> None:
    """Stop on the first signal; a second one ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        server.stop()
        # Last, since the signal may have come in the middle of another line.
        log.info("stopping on %s", signal.Signals(number).name)

    for each in _SIGNALS:
        signal.signal(each, stop)


def _settings(options: Options, store: FilesAndCache) -> ServerSettings:
    security = options.security
    client_tls = None if security.tls is None else security.trust
    return ServerSettings(
        options.version,
        store,
        secret=security.secret,
        tls=security.tls,
        trust=security.trust,
        allowed=security.allowed,
        dial=CourierService(ClientSettings(secret=security.secret, tls=client_tls)),
    )


def _announce(port: int, options: Options, store: FilesAndCache, devices: Sequence[Device]) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"Starting RPC server v{VERSIONS[options.version]} (llama-serve {BUILD_INFO})")
    print(f"  endpoint       : {host}:{port}")
    for title, text in storage_words(options.storage, store).items():
        print(f"  {title:<15}: {text}")
    print(f"  clients from   : {options.security.places or 'anywhere'}")
    print(f"  clients need   : {options.security.words}")
    print("Devices:")
    for device in devices:
        memory = device.memory()
        print(
            f"  {device.info.name}: {device.info.description} "
            f"({memory.total // _MIB} MiB, {memory.free // _MIB} MiB free)"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
