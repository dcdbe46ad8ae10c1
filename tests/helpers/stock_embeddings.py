"""Embeddings from stock llama.cpp (the protocol 8 peer, which runs in a root of its own).

Texts go through stock's own tokenizer; vectors come back as they are, not normalised. Flash
attention is off, the setting in which stock is nearest to exact.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.helpers.assets import asset

_SCRIPT: Final = """
import base64, json, sys
sys.path.insert(0, "/opt/peer")
from llama_cpp_py_sync import Llama
path, texts, pooling, n = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
# The library reads a whole hidden state even where the result is a single score.
Llama._embedding_value = lambda self, row: bytes(self._ffi.buffer(row, 4 * n))
llm = Llama(
    path, n_ctx=512, n_batch=512, n_threads=1, embedding=True, pooling_type=pooling,
    flash_attn_type=0,
)
for text in texts:
    value = llm.get_embeddings(text, per_token=pooling == "none")
    data = b"".join(value) if pooling == "none" else value
    print("embedding", base64.b64encode(data).decode())
"""


def stock_embeddings(
    path: Path, texts: Sequence[str], pooling: str, n: int
) -> list[npt.NDArray[np.float32]]:
    """Rows (n_rows, n) of each text; skips the test without the peer."""
    root = asset("peer_v8") / "root"
    (root / "models").mkdir(exist_ok=True)
    inside = root / "models" / path.name
    shutil.copyfile(path, inside)
    command = ["chroot", str(root), "python3", "-c", _SCRIPT, f"/models/{path.name}"]
    arguments = [json.dumps(list(texts)), pooling, str(n)]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=100, check=False
        )
    finally:
        inside.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("embedding ")]
    assert len(rows) == len(texts), done.stdout[-2000:]
    return [np.frombuffer(base64.b64decode(row), np.float32).reshape(-1, n) for row in rows]
