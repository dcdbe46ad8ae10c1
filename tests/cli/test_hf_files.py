"""Which file `-hf` means, and where the cache is; nothing here touches the network."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from app.cli.hf_files import (
    HfSource,
    cache_folder,
    cached_models,
    choose_file,
    resolve,
    shards_of,
)
from app.errors import ConfigError

COMMIT = "479896ec924af6d40fd419ab8f4d1eb2101de00d"
HOME = Path("~/.cache/huggingface/hub").expanduser()
FILES = [
    "mmproj-F16.gguf",
    "model-Q2_K.gguf",
    "model-Q4_K_M.gguf",
    "model-Q8_0-00002-of-00002.gguf",
    "model-Q8_0-00001-of-00002.gguf",
    "model-UD-q5_k_m.gguf",
    "README.md",
]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    (snapshot / "sub").mkdir(parents=True)
    for name in ("a-Q8_0.gguf", "sub/b-F32.gguf", "mmproj.gguf"):
        (snapshot / name).write_bytes(b"GGUF")
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LLAMA_CACHE": "/a", "HF_HUB_CACHE": "/b"}, Path("/a")),
        ({"HF_HUB_CACHE": "/b", "HUGGINGFACE_HUB_CACHE": "/c"}, Path("/b")),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/d"}, Path("/c")),
        ({"HF_HOME": "/d", "XDG_CACHE_HOME": "/e"}, Path("/d/hub")),
        ({"XDG_CACHE_HOME": "/e"}, Path("/e/huggingface/hub")),
        ({}, HOME),
    ],
)
def test_the_folder_of_the_cache(environ: Mapping[str, str], folder: Path) -> None:
    assert cache_folder(environ) == folder


@pytest.mark.parametrize(
    ("repo", "file", "chosen"),
    [
        ("o/n", "", "model-Q4_K_M.gguf"),
        ("o/n:Q2_K", "", "model-Q2_K.gguf"),
        ("o/n:q8_0", "", "model-Q8_0-00001-of-00002.gguf"),
        ("o/n:Q5_K_M", "", "model-UD-q5_k_m.gguf"),
        ("o/n:Q2_K", "other.gguf", "other.gguf"),
    ],
)
def test_the_choice_of_the_file(repo: str, file: str, chosen: str) -> None:
    assert choose_file(HfSource(repo, Path(), file), FILES) == chosen


def test_without_a_preferred_file_the_first_model_is_taken() -> None:
    assert choose_file(HfSource("o/n", Path()), ["mmproj-a.gguf", "b-F32.gguf"]) == "b-F32.gguf"


def test_a_quant_that_is_not_there_lists_what_is() -> None:
    with pytest.raises(ConfigError, match=r"o/n:Q9.*model-Q2_K\.gguf"):
        choose_file(HfSource("o/n:Q9", Path()), FILES)


def test_all_parts_of_a_split_model() -> None:
    assert shards_of("m-00001-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert shards_of("m.gguf") == ["m.gguf"]


def test_offline_finds_the_file_in_the_cache(cache: Path) -> None:
    found = resolve(HfSource("org/name", cache, offline=True))
    assert found == cache / "models--org--name" / "snapshots" / COMMIT / "a-Q8_0.gguf"
    named = resolve(HfSource("org/name", cache, "sub/b-F32.gguf", offline=True))
    assert named.name == "b-F32.gguf"


@pytest.mark.parametrize(
    ("repo", "file"),
    [
        ("org/other", ""),
        ("org/name", "none.gguf"),
        ("org/name:Q1", ""),
        ("no-slash", ""),
        ("a/../b", ""),
    ],
)
def test_offline_says_what_is_missing(cache: Path, repo: str, file: str) -> None:
    with pytest.raises(ConfigError):
        resolve(HfSource(repo, cache, file, offline=True))


def test_a_damaged_reference_is_no_way_out_of_the_cache(cache: Path) -> None:
    (cache / "models--org--name" / "refs" / "main").write_text("../../..")
    with pytest.raises(ConfigError, match="not in the cache"):
        resolve(HfSource("org/name", cache, offline=True))


def test_a_token_does_not_show() -> None:
    assert "secret" not in repr(HfSource("o/n", Path(), token="secret"))


def test_the_cache_lists_what_a_repository_flag_takes(cache: Path) -> None:
    snapshot = cache / "models--org--name" / "snapshots" / COMMIT
    for name in ("c-q4_k_m-00001-of-00002.gguf", "c-q4_k_m-00002-of-00002.gguf", "no.gguf"):
        (snapshot / name).write_bytes(b"GGUF")
    (cache / "models--org--half").mkdir()
    assert cached_models(cache) == ["org/name:F32", "org/name:Q4_K_M", "org/name:Q8_0"]
    assert cached_models(cache / "nowhere") == []
