"""What a worker of our own says about one of its devices.

The JSON comes from another machine: every value is checked, and an unknown one counts as not said.
"""

import json
from dataclasses import dataclass

from app.devices.base import DeviceKind
from app.ggml.ops import Op
from app.rpc_backend.errors import RemoteProtocolError

_MAX_TEXT = 200
_MAX_THREADS = 1 << 16


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Name on its own machine (CPU, CUDA0), description, real kind, threads where they are known,
    the operations that it runs, None when it did not say, and the program that serves it.
    """

    name: str
    description: str
    kind: DeviceKind
    threads: int | None
    ops: frozenset[Op] | None
    program: str

    def __str__(self) -> str:
        n = self.threads
        threads = "" if n is None else f", {n} thread{'' if n == 1 else 's'}"
        return f"{self.name}: {self.description}{threads}"


def read_facts(text: bytes) -> DeviceFacts:
    """Read the reply to DEVICE_FACTS.

    Raises: RemoteProtocolError.
    """
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise RemoteProtocolError(f"DEVICE_FACTS: {text[:80]!r}: expected a JSON object")
    threads, ops = facts.get("threads"), facts.get("ops")
    return DeviceFacts(
        name=_text(facts, "name"),
        description=_text(facts, "description"),
        kind=_kind(facts.get("kind")),
        threads=threads if type(threads) is int and 0 < threads < _MAX_THREADS else None,
        ops=_ops(ops) if isinstance(ops, list) else None,
        program=_text(facts, "program"),
    )


def _text(facts: dict[str, object], key: str) -> str:
    value = facts.get(key)
    shown = value if isinstance(value, str) else ""
    return "".join(c for c in shown if c.isprintable())[:_MAX_TEXT] or "unknown"


def _kind(value: object) -> DeviceKind:
    known = {kind.value: kind for kind in DeviceKind}
    return known.get(value, DeviceKind.REMOTE) if isinstance(value, str) else DeviceKind.REMOTE


def _ops(names: list[object]) -> frozenset[Op]:
    """Operations by name; those that this program does not know do not matter here."""
    return frozenset(Op[name] for name in names if isinstance(name, str) and name in Op.__members__)
