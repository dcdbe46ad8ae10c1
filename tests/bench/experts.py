"""A stock client with a mixture of experts: our worker against llama.cpp's on this machine.

    python -m tests.bench.experts --tests "pp64 pp512 tg32" --rounds 3

Run by hand; needs the assets peer_v7 and smollm2 (its tokenizer). The model is made up, of the
shape of Qwen3's mixtures but small: 8 layers, 4 of 32 experts. Stock llama-bench drives one worker
of one thread, ours and theirs in turn; the table is that of `tests.bench.versus`.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

from tests.bench.versus import TABLE_HEAD, Run, SpeedTest, parse_test, table_line, theirs
from tests.helpers.assets import asset_path
from tests.helpers.process import own_worker
from tests.helpers.stock_peers import stock_worker
from tests.helpers.tiny_gguf import copy_tokenizer

N_LAYER, N_EMBD, N_HEAD, N_KV, HEAD, N_FF, N_EXPERT, N_USED = 8, 1024, 16, 4, 64, 512, 32, 4
F32, Q4_0, Q8_0 = (GGMLQuantizationType[name] for name in ("F32", "Q4_0", "Q8_0"))

Row = tuple[str, tuple[int, ...], GGMLQuantizationType]


def _rows(n_vocab: int) -> Iterator[Row]:
    """Name, shape [ne] and type of each tensor."""
    yield "token_embd.weight", (N_EMBD, n_vocab), Q8_0
    yield "output_norm.weight", (N_EMBD,), F32
    layer: Final[tuple[Row, ...]] = (
        ("attn_norm", (N_EMBD,), F32),
        ("attn_q", (N_EMBD, N_HEAD * HEAD), Q4_0),
        ("attn_k", (N_EMBD, N_KV * HEAD), Q4_0),
        ("attn_v", (N_EMBD, N_KV * HEAD), Q4_0),
        ("attn_output", (N_HEAD * HEAD, N_EMBD), Q4_0),
        ("attn_q_norm", (HEAD,), F32),
        ("attn_k_norm", (HEAD,), F32),
        ("ffn_norm", (N_EMBD,), F32),
        ("ffn_gate_inp", (N_EMBD, N_EXPERT), F32),
        ("ffn_gate_exps", (N_EMBD, N_FF, N_EXPERT), Q4_0),
        ("ffn_up_exps", (N_EMBD, N_FF, N_EXPERT), Q4_0),
        ("ffn_down_exps", (N_FF, N_EMBD, N_EXPERT), Q4_0),
    )
    for il in range(N_LAYER):
        for name, ne, type_ in layer:
            yield f"blk.{il}.{name}.weight", ne, type_


def write_model(path: Path, tokenizer_from: Path) -> Path:
    """Write the model and return its path."""
    writer = GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(N_LAYER)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_KV)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_USED)
    writer.add_expert_feed_forward_length(N_FF)
    n_vocab = copy_tokenizer(writer, tokenizer_from)
    rng = np.random.default_rng(0)
    for name, ne, type_ in _rows(n_vocab):
        values = rng.standard_normal(ne[::-1], np.float32)
        values = values / np.float32(ne[0] ** 0.5) if len(ne) > 1 else np.ones_like(values)
        writer.add_tensor(name, quants.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def speed(ours: bool, test: SpeedTest, run: Run) -> float:
    """Tokens per second of stock llama-bench over one worker."""
    if not ours:
        with stock_worker(7) as port:
            return theirs(test, run, ("-ngl", "99", "--rpc", f"127.0.0.1:{port}"))
    with own_worker("--protocol", "7") as (_, port):
        return theirs(test, run, ("-ngl", "99", "--rpc", f"127.0.0.1:{port}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.experts")
    parser.add_argument("--tests", default="pp64 pp512 tg32", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    args = parser.parse_args(argv)
    sys.stdout.write(TABLE_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "experts.gguf", asset_path("smollm2"))
        run = Run(model, asset_path("peer_v7"), 1, 1, pooled=True, flags=())
        for test in map(parse_test, args.tests.split()):
            rounds = [(speed(True, test, run), speed(False, test, run)) for _ in range(args.rounds)]
            sys.stdout.write(table_line(test.name, *zip(*rounds, strict=True)) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
