"""Which weights each stage needs, and their way from the mapped file to the devices.

All devices are filled at once, each by a thread of its own that hands out slices of the mapping, so
the main host never holds a copy of the model; pages are given back to the system as soon as they
are on their way. What a worker has under its hash is not sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

from app.devices.base import BufferUsage, Weight
from app.devices.weights import PART_BYTES
from app.engine.buffers import alloc_tensors
from app.engine.load_progress import DeviceLoad, Progress, Tally
from app.engine.stage import Stage
from app.ggml.gguf_file import GGUFFile, TensorInfo
from app.ggml.tensor import new_tensor
from app.models.base import TensorSpec
from app.models.tensors import output_weight_name
from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.weight_hashes import WeightHashes
from app.rpc_backend.wire.fnv import OFFSET_BASIS

OUTPUT = "output.weight"

_Group = Sequence[tuple[Stage, Mapping[str, TensorInfo]]]
"""The stages of one device and what each of them needs."""


def stage_weights(
    specs: Sequence[TensorSpec], gguf: GGUFFile, layers: range, *, has_output: bool
) -> dict[str, TensorInfo]:
    """Tensors that a stage reads, by the name in the graph; a tied output is the embedding, and a
    model that makes no logits has none.
    """
    found: dict[str, TensorInfo] = {}
    for spec in specs:
        if spec.name in gguf.tensors and _belongs(spec, layers, has_output):
            found[spec.name] = gguf.tensors[spec.name]
    if has_output and any(spec.name == OUTPUT for spec in specs):
        found[OUTPUT] = gguf.tensors[output_weight_name(gguf)]
    return found


def _belongs(spec: TensorSpec, layers: range, has_output: bool) -> bool:
    if spec.layer is not None:
        return spec.layer in layers
    if spec.name.startswith("token_embd"):
        return False
    if spec.name.startswith(("output", "cls")):
        return has_output
    return len(layers) > 0


def weight_bytes(infos: Mapping[str, TensorInfo]) -> int:
    """Bytes of the tensors."""
    return sum(info.nbytes for info in infos.values())


def alloc_weights(stage: Stage, infos: Mapping[str, TensorInfo]) -> None:
    """Give the stage's weights their places on its device.

    Raises: OutOfMemoryError, DeviceLostError.
    """
    stage.weights = {name: new_tensor(info.type, info.ne, name) for name, info in infos.items()}
    alloc_tensors(stage.device, list(stage.weights.values()), BufferUsage.WEIGHTS)


def send_weights(
    stages: Sequence[tuple[Stage, Mapping[str, TensorInfo]]],
    gguf: GGUFFile,
    hashes: WeightHashes,
    progress: Progress,
) -> None:
    """Send all weights, all devices at once; returns when every device has them, or soon after one
    has failed.

    Raises: DeviceLostError.
    """
    by_device: dict[int, list[tuple[Stage, Mapping[str, TensorInfo]]]] = {}
    for stage, infos in stages:
        by_device.setdefault(id(stage.device), []).append((stage, infos))
    has_failed = Event()
    tally = Tally([_awaited(group) for group in by_device.values()], progress)
    with ThreadPoolExecutor(max(1, len(by_device)), "upload") as pool:
        jobs = [
            pool.submit(_fill, group, gguf, hashes, partial(tally.count, i), has_failed)
            for i, group in enumerate(by_device.values())
        ]
        for job in jobs:
            job.result()
    # What waited to be sent has been read again behind the release of its tensor.
    gguf.release_all()
    hashes.save()


def _awaited(group: _Group) -> DeviceLoad:
    name = group[0][0].device.info.name
    return DeviceLoad(name, sum(weight_bytes(infos) for _, infos in group))


def _fill(
    group: _Group,
    gguf: GGUFFile,
    hashes: WeightHashes,
    count: Callable[[int, bool], None],
    has_failed: Event,
) -> None:
    def weights() -> Iterator[Weight]:
        for stage, infos in group:
            for name, info in infos.items():
                if has_failed.is_set():
                    return
                tensor = stage.weights[name]
                stage.device.init_tensor(tensor)
                hash_ = partial(hashes.hash_of, info, partial(hashed, info.name))
                data, told = gguf.data(info.name), partial(arrived, info.name)
                yield Weight(tensor, data, hash_, told)

    def hashed(name: str) -> int:
        data, state = gguf.data(name), OFFSET_BASIS
        for start in range(0, data.nbytes, PART_BYTES):
            part = data[start : start + PART_BYTES]
            state = fnv1a_64(part, state)
            # Until it is sent, much else is hashed.
            gguf.release(name, start, start + part.nbytes)
        return state

    def arrived(name: str, start: int, end: int, had: bool) -> None:
        gguf.release(name, start, end)
        count(end - start, had)

    try:
        group[0][0].device.set_weights(weights())
    except BaseException:
        has_failed.set()
        raise
