"""Logits from stock llama.cpp (the protocol 8 peer, which runs in a root of its own).

Flash attention is off, and caches are F32 unless told, the setting in which stock is nearest to
exact; weights that are quantised are still multiplied with activations of 8 bits.
"""

import base64
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
path, prompts, kv = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
size = max(map(len, prompts))
exact = {"flash_attn_type": 0, "type_k": kv, "type_v": kv}
llm = Llama(path, n_ctx=size, n_batch=size, n_threads=1, **exact)
for tokens in prompts:
    llm._clear_context_state()
    llm._eval_tokens(tokens, 0)
    row = llm._lib.llama_get_logits_ith(llm._ctx, -1)
    print("logits", base64.b64encode(bytes(llm._ffi.buffer(row, 4 * llm.n_vocab))).decode())
"""


def stock_logits(
    path: Path, prompts: Sequence[Sequence[int]], *, type_kv: str = "f32"
) -> list[npt.NDArray[np.float32]]:
    """Logits (n_vocab,) after each prompt of token ids; skips the test without the peer."""
    root = asset("peer_v8") / "root"
    (root / "models").mkdir(exist_ok=True)
    inside = root / "models" / path.name
    shutil.copyfile(path, inside)
    command = ["chroot", str(root), "python3", "-c", _SCRIPT, f"/models/{path.name}"]
    shown = str([list(tokens) for tokens in prompts])
    try:
        done = subprocess.run(
            [*command, shown, type_kv], capture_output=True, text=True, timeout=100, check=False
        )
    finally:
        inside.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("logits ")]
    assert len(rows) == len(prompts), done.stdout[-2000:]
    return [np.frombuffer(base64.b64decode(row), np.float32) for row in rows]
