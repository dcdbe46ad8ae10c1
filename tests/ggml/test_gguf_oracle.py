"""Our reader against the `gguf` package: same metadata, same tensors, same bytes."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ggml.gguf_file import GGUFFile, MetaValue
from app.ggml.types import MODEL_TYPES, GGMLType
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import ARCHITECTURES, TinyConfig, write_tiny


def _same_value(ours: MetaValue, theirs: object) -> bool:
    if isinstance(ours, np.ndarray):
        return bool(ours.tolist() == theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _assert_same(path: Path) -> None:
    reader = GGUFReader(path)
    with GGUFFile.open(path) as gguf:
        fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        assert list(gguf.metadata) == list(fields)
        assert [k for k, v in fields.items() if not _same_value(gguf.metadata[k], v)] == []
        assert list(gguf.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = gguf.tensors[tensor.name]
            shape = tuple(tensor.shape.tolist())
            assert info.ne == shape + (1,) * (4 - len(shape))
            assert (int(info.type), info.offset) == (int(tensor.tensor_type), tensor.data_offset)
            assert gguf.data(tensor.name) == tensor.data.tobytes()


@pytest.mark.parametrize("name", ["smollm2", "stories260k"])
def test_a_real_model_reads_as_the_gguf_package_reads_it(name: str) -> None:
    _assert_same(asset(name))


def test_gemmas_vocabulary_packs_back_into_the_bytes_of_the_file() -> None:
    path = asset("gemma3")
    with GGUFFile.open(path) as gguf:
        tokens = gguf.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert len(tokens) == 262_144
        head = path.read_bytes()[: gguf.tensors["token_embd.weight"].offset]
        packed = b"".join(len(t.encode()).to_bytes(8, "little") + t.encode() for t in tokens)
        assert packed in head
        for key in ("scores", "token_type"):
            array = gguf.metadata[f"tokenizer.ggml.{key}"]
            assert isinstance(array, np.ndarray)
            assert array.tobytes() in head
            assert len(array) == len(tokens)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_written_model_reads_as_the_gguf_package_reads_it(arch: str, tmp_path: Path) -> None:
    config = TinyConfig(arch, tied=False)
    _assert_same(write_tiny(tmp_path / "m.gguf", asset("stories260k"), config))


@pytest.mark.parametrize("type_", sorted(MODEL_TYPES))
def test_every_model_type_reads_as_the_gguf_package_reads_it(
    type_: GGMLType, tmp_path: Path
) -> None:
    config = TinyConfig("llama", n_layer=1, n_embd=256, n_ff=256, types={"*": type_})
    _assert_same(write_tiny(tmp_path / "m.gguf", asset("stories260k"), config))


def test_every_vocabulary_of_the_vectors_opens(tmp_path: Path) -> None:
    count = 0
    with tarfile.open(asset("llama_cpp_sdist")) as tar:
        for member in tar:
            if not member.name.endswith(".gguf") or member.size > 12_000_000:
                continue
            source = tar.extractfile(member)
            assert source is not None
            path = tmp_path / "vocab.gguf"
            path.write_bytes(source.read())
            with GGUFFile.open(path) as gguf:
                assert gguf.architecture
                assert isinstance(gguf.metadata["tokenizer.ggml.tokens"], list)
            count += 1
    assert count >= 10


_SCALARS = st.one_of(
    st.tuples(st.just(GGUFValueType.UINT8), st.integers(0, 2**8 - 1)),
    st.tuples(st.just(GGUFValueType.INT8), st.integers(-(2**7), 2**7 - 1)),
    st.tuples(st.just(GGUFValueType.UINT16), st.integers(0, 2**16 - 1)),
    st.tuples(st.just(GGUFValueType.INT16), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just(GGUFValueType.UINT32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(GGUFValueType.INT32), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(GGUFValueType.UINT64), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(GGUFValueType.INT64), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(GGUFValueType.FLOAT32), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(GGUFValueType.FLOAT64), st.floats(allow_nan=False)),
    st.tuples(st.just(GGUFValueType.BOOL), st.booleans()),
    st.tuples(st.just(GGUFValueType.STRING), st.text(max_size=30)),
)


@settings(max_examples=40, deadline=None)
@given(
    scalars=st.lists(_SCALARS, max_size=8),
    words=st.lists(st.text(max_size=8), min_size=1, max_size=20),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    alignment=st.sampled_from([8, 32, 64, 4096]),
)
def test_what_the_gguf_package_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    scalars: list[tuple[GGUFValueType, int | float | bool | str]],
    words: list[str],
    numbers: list[int],
    alignment: int,
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_custom_alignment(alignment)
    for index, (kind, value) in enumerate(scalars):
        writer.add_key_value(f"scalar.{index}", value, kind)
    writer.add_array("words", words)
    writer.add_array("numbers", numbers)
    writer.add_array("flags", [number > 0 for number in numbers])
    writer.add_tensor("a", np.arange(7, dtype=np.float32))
    writer.add_tensor("b", np.arange(6, dtype=np.float16).reshape(1, 2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _assert_same(path)
