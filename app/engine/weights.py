"""Which weights each stage needs, and their way from the mapped file to the devices.

All devices are filled at once, each by a thread of its own that hands out slices of the mapping, so
the main host never holds a copy of the model; pages are given back to the system as soon as they
are on their way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.devices.base import BufferUsage, Device, DeviceKind
from app.engine.buffers import alloc_tensors
from app.engine.stage import Stage
from app.ggml.gguf_file import GGUFFile, TensorInfo
from app.ggml.tensor import new_tensor
from app.models.base import TensorSpec
from app.models.tensors import output_weight_name

OUTPUT = "output.weight"

LOCAL_PART_BYTES: Final = 16 << 20
"""So much of the file is resident beside the copy on a local device."""

Progress = Callable[[int, int], None]
"""Called with (bytes sent, bytes in all)."""


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
    stages: Sequence[tuple[Stage, Mapping[str, TensorInfo]]], gguf: GGUFFile, progress: Progress
) -> None:
    """Send all weights, all devices at once; returns when every device has them.

    Raises: DeviceLostError.
    """
    total = sum(weight_bytes(infos) for _, infos in stages)
    sent = 0

    def count(n: int) -> None:
        nonlocal sent
        sent += n
        progress(sent, total)

    by_device: dict[int, list[tuple[Stage, Mapping[str, TensorInfo]]]] = {}
    for stage, infos in stages:
        by_device.setdefault(id(stage.device), []).append((stage, infos))
    with ThreadPoolExecutor(max(1, len(by_device)), "upload") as pool:
        jobs = [pool.submit(_fill, group, gguf, count) for group in by_device.values()]
        for job in jobs:
            job.result()
    # What waited to be sent has been read again behind the release of its tensor.
    gguf.release_all()


def _fill(
    group: Sequence[tuple[Stage, Mapping[str, TensorInfo]]],
    gguf: GGUFFile,
    count: Callable[[int], None],
) -> None:
    for stage, infos in group:
        for name, info in infos.items():
            tensor = stage.weights[name]
            stage.device.init_tensor(tensor)
            for start, part in _parts(stage.device, gguf.data(info.name)):
                stage.device.set_tensor(tensor, part, start)
                gguf.release(info.name, start, start + part.nbytes)
                count(part.nbytes)
    for stage, _ in group:
        stage.device.synchronize()


def _parts(device: Device, data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Offsets and slices; a worker gets a tensor whole, since it is asked for it by one hash."""
    size = data.nbytes if device.info.kind is DeviceKind.REMOTE else LOCAL_PART_BYTES
    for start in range(0, data.nbytes, max(1, size)):
        yield start, data[start : start + size]
