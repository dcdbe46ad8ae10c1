"""Finds the GGUF file that `-hf` names: in Hugging Face's cache, or downloaded into it.

Cache folder, layout and choice of the file are llama.cpp's (common/download.cpp), so both programs
share one cache. With `--offline` nothing but the cache is looked at; without it, a listing that
cannot be had falls back to the cache.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.errors import ConfigError

_log = logging.getLogger(__name__)

_PREFERRED: Final = ("Q4_K_M", "Q8_0")
_NO_MODELS: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_QUANT: Final = re.compile(r"[-.](\w+)$", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class HfSource:
    """A repository `user/model[:quant]`, or one file of it, and the folder of the cache."""

    repo: str
    cache: Path
    file: str = ""
    token: str = field(default="", repr=False)
    offline: bool = False

    @property
    def name(self) -> str:
        """The repository without the quant."""
        return self.repo.partition(":")[0]

    @property
    def tag(self) -> str:
        """The quant, or an empty text."""
        return self.repo.partition(":")[2]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache: LLAMA_CACHE first, then Hugging Face's own variables."""
    for name, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if environ.get(name):
            return Path(environ[name]).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()


def resolve(source: HfSource) -> Path:
    """Return the path of the model's (first) file, downloaded if need be.

    Raises: ConfigError saying what is missing and where it was looked for.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source.name):
        raise ConfigError(f"--hf-repo {source.repo!r}: expected <user>/<model>[:quant]")
    if not source.offline:
        try:
            return _download(source)
        except OSError as error:  # what huggingface_hub raises for the network
            _log.warning("%s cannot be listed or fetched (%s): using the cache", source.name, error)
    snapshot = _snapshot(source)
    if snapshot is None:
        raise ConfigError(f"{source.name} is not in the cache {source.cache}")
    files = [str(p.relative_to(snapshot)) for p in sorted(snapshot.rglob("*.gguf"))]
    path = snapshot / choose_file(source, files)
    if not path.is_file():
        raise ConfigError(f"{path} is not in the cache")
    return path


def choose_file(source: HfSource, files: Sequence[str]) -> str:
    """Return which of a repository's files to serve; of a split model the first part.

    Raises: ConfigError listing the files when none fits.
    """
    if source.file:
        return source.file
    models = [f for f in files if _is_model(f)]
    tags = (source.tag,) if source.tag else _PREFERRED
    for tag in tags:
        wanted = re.compile(re.escape(tag) + "[.-]", re.IGNORECASE)
        if found := next(filter(wanted.search, models), None):
            return found
    if models and not source.tag:
        return models[0]
    shown = ", ".join(files[:_MAX_LISTED]) or "no GGUF file"
    raise ConfigError(f"{source.repo}: no file fits among {shown}")


def cached_models(cache: Path) -> list[str]:
    """Return the models of the cache as --hf-repo takes them, in alphabetical order."""
    found: set[str] = set()
    for folder in cache.glob("models--*--*"):
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(HfSource(name, cache))
        for path in snapshot.rglob("*.gguf") if snapshot else ():
            quant = _QUANT.search(_SHARD.sub("", path.name).removesuffix(".gguf"))
            if _is_model(path.name) and quant:
                found.add(f"{name}:{quant[1].upper()}")
    return sorted(found)


def _is_model(file: str) -> bool:
    """Whether a file is a model, or the first part of one, and no helper of one."""
    name = file.rpartition("/")[2]
    shard = _SHARD.search(name)
    return (
        name.endswith(".gguf")
        and not any(helper in name for helper in _NO_MODELS)
        and (shard is None or int(shard[1]) == 1)
    )


def shards_of(file: str) -> list[str]:
    """Return all parts of a split model, or just the file."""
    match = _SHARD.search(file)
    if match is None:
        return [file]
    head, n = file[: match.start()], int(match[2])
    return [f"{head}-{i + 1:05d}-of-{n:05d}.gguf" for i in range(n)]


def _download(source: HfSource) -> Path:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    token = source.token or None
    try:
        files = [source.file] if source.file else HfApi(token=token).list_repo_files(source.name)
        parts = shards_of(choose_file(source, sorted(files)))
        paths = [
            hf_hub_download(source.name, p, cache_dir=source.cache, token=token) for p in parts
        ]
    except Exception as error:
        # Which HTTP library it uses, and so which errors it raises, depends on its version.
        if not isinstance(error, (OSError, *HfHubHTTPError.__bases__)):
            raise
        raise OSError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
    return Path(paths[0])


def _snapshot(source: HfSource) -> Path | None:
    folder = source.cache / f"models--{source.name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None
