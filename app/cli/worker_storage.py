"""Where llama-rpc-server finds weights that a main host offers by hash: in its own model files and
in its cache.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.cli.flags.environment import CACHE_MIN_SIZE
from app.cli.flags.parser import Parsed
from app.cli.packaged_file import HASHES, cache_dir
from app.rpc_backend.weight_hashes import HashStore
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES
from app.rpc_backend.worker.own_files import OwnFiles
from app.rpc_backend.worker.tensor_cache import DEFAULT_MAX_BYTES, TensorCache
from app.rpc_backend.worker.tensor_store import FilesAndCache

_DEFAULT_FOLDER: Final = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """What the flags say: a cache, and files and folders with models; hashes of these are kept in
    `hash_folder`.
    """

    cache: TensorCache | None
    models: tuple[Path, ...]
    hash_folder: Path
    min_bytes: int

    def open(self) -> FilesAndCache:
        """Make the cache's folder and begin to look through the models. A cache that cannot be
        used is left out, with a warning.
        """
        files = None
        if self.models:
            files = OwnFiles(self.models, HashStore(self.hash_folder), self.min_bytes)
            files.look()
        usable = self.cache is not None and self.cache.prepare()
        return FilesAndCache(files, self.cache if usable else None)


def storage_words(storage: Storage, opened: FilesAndCache) -> Mapping[str, str]:
    """Return what the worker tells of it at its start."""
    return {
        "local cache": "n/a" if opened.cache is None else str(opened.cache.folder),
        "own models": ", ".join(map(str, storage.models)) or "n/a",
    }


def add_storage_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `read_storage` reads."""
    add = parser.add_argument
    add(
        "-c",
        "--cache",
        nargs="?",
        const=_DEFAULT_FOLDER,
        metavar="DIR",
        help="keep weights on disk, in DIR or where the stock worker keeps them",
    )
    add(
        "--cache-size",
        type=_size,
        default=DEFAULT_MAX_BYTES,
        metavar="SIZE",
        help="most that the cache may take, in MiB or with a unit (500M, 20G); what was used "
        "longest ago goes first; 0 for no limit (default: 64G)",
    )
    add(
        "--models",
        action="append",
        default=[],
        metavar="DIR|FILE,...",
        help="GGUF files of this machine: weights that are in them are not sent over the network; "
        "repeatable",
    )


def read_storage(args: argparse.Namespace, parsed: Parsed, environ: Mapping[str, str]) -> Storage:
    """Return what flags and environment say."""
    said = parsed.maybe_integer(CACHE_MIN_SIZE.dest)
    min_bytes = MIN_HASHED_BYTES if said is None else said
    cache = None
    if args.cache is not None:
        folder = Path(args.cache) if args.cache else default_cache_folder(environ)
        cache = TensorCache(folder, min_bytes, args.cache_size or None)
    places = (place for text in args.models for place in text.split(",") if place)
    models = tuple(Path(place).expanduser() for place in places)
    return Storage(cache, models, cache_dir(environ) / HASHES, min_bytes)


def default_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which the stock worker keeps its cache."""
    if environ.get("LLAMA_CACHE"):
        return Path(environ["LLAMA_CACHE"]) / "rpc"
    home = Path(environ.get("HOME") or Path.home())
    caches = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(environ.get("XDG_CACHE_HOME") or caches) / "llama.cpp" / "rpc"


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)(?:I?B)?", text.upper(), re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}': expected a size such as 500M or 20G")
    return int(found[1]) << {"K": 10, "": 20, "M": 20, "G": 30, "T": 40}[found[2]]
