"""The yardstick: a forward pass in float64 on the weights as the `gguf` package dequantises them.

It shares no code with `app`: files are read by the gguf package and the sums are plain torch, so
that it cannot make the same mistake. Attention is over all tokens at once, without a cache. Only
the file's own rounding is left in the result, hence the distance of an executor to these numbers
is that executor's error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

ROWS_AT_ONCE: Final = 16384
GEMMA_27B_LAYERS: Final = 62


def exact_logits(
    path: Path, tokens: Sequence[int], *, n_last: int | None = None
) -> npt.NDArray[np.float64]:
    """Logits (n_tokens, n_vocab) of a model file for one sequence; of the last `n_last` tokens only
    when given.
    """
    return _model(path).logits(tokens, n_last)


def exact_logprobs(path: Path, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Log-probabilities (n_vocab,) of the token that follows `tokens`."""
    logits = torch.from_numpy(exact_logits(path, tokens, n_last=1)[0])
    return np.asarray(torch.log_softmax(logits, dim=0).numpy(), np.float64)


@lru_cache(maxsize=1)
def _model(path: Path) -> "ExactModel":
    return ExactModel(path)


@dataclass(frozen=True)
class Rope:
    """Rotation of one kind of layer."""

    angles: Tensor  # (d / 2,): radians per position
    magnitude: float
    interleaved: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x (n_tokens, n_head, d) by the positions 0, 1, 2 …"""
        theta = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] * self.angles
        cos, sin = theta.cos() * self.magnitude, theta.sin() * self.magnitude
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class ExactModel:
    """One model file; matrices of layers are dequantised when first used and kept in float32."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors: dict[str, ReaderTensor] = {t.name: t for t in self._reader.tensors}
        self._kept: dict[str, Tensor] = {}
        self.arch = str(self._field("general.architecture"))
        self.n_layer = int(self._key("block_count"))
        self.n_head = int(self._key("attention.head_count"))
        self.n_head_kv = int(self._key("attention.head_count_kv", self.n_head))
        self.n_embd = int(self._key("embedding_length"))
        self.d = int(self._key("attention.key_length", self.n_embd // self.n_head))
        self.eps = float(self._key("attention.layer_norm_rms_epsilon"))
        self.gemma = self.arch == "gemma3"

    def _field(self, key: str, default: object = None) -> object:
        field = self._reader.get_field(key)
        if field is None:
            assert default is not None, f"{key} is missing"
            return default
        return field.contents()

    def _key(self, suffix: str, default: float | None = None) -> float:
        value = self._field(f"{self.arch}.{suffix}", default)
        assert isinstance(value, int | float)
        return value

    def _weight(self, name: str) -> Tensor:
        if name not in self._kept:
            tensor = self._tensors[name]
            self._kept[name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        return self._kept[name].double()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weight(f"{name}.weight").T
        return y + self._weight(f"{name}.bias") if f"{name}.bias" in self._tensors else y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self._weight(name)

    def _embeddings(self, tokens: Sequence[int]) -> Tensor:
        tensor = self._tensors["token_embd.weight"]
        rows = dequantize(tensor.data[list(tokens)], tensor.tensor_type)
        x = torch.from_numpy(rows.copy()).double()
        return x * math.sqrt(self.n_embd) if self.gemma else x

    def window(self, il: int) -> int | None:
        """Positions that a layer sees, or None for all."""
        if not self.gemma:
            return None
        n_swa = int(self._key("attention.sliding_window", 0))
        period = int(self._key("attention.sliding_window_pattern", 6))
        return n_swa if n_swa and (il + 1) % period else None

    @cached_property
    def _rope_full(self) -> Rope:
        base = float(self._key("rope.freq_base", 10000.0))
        angles = _angles(base, self.d)
        magnitude = float(self._key("rope.scaling.attn_factor", 1.0))
        kind = str(self._field(f"{self.arch}.rope.scaling.type", "linear"))
        factor = float(self._key("rope.scaling.factor", 1.0))
        if kind == "linear":
            angles = angles / factor
        elif kind == "yarn":
            n_ctx = self._key("rope.scaling.original_context_length", self._key("context_length"))
            angles = _yarn(angles, base, factor, int(n_ctx))
            magnitude *= 1.0 + 0.1 * math.log(factor)
        if "rope_freqs.weight" in self._tensors:
            angles = angles / self._weight("rope_freqs.weight")
        return Rope(angles, magnitude, interleaved=self.arch == "llama")

    @cached_property
    def _rope_window(self) -> Rope:
        base = float(self._key("rope.freq_base_swa", 10000.0))
        magnitude = float(self._key("rope.scaling.attn_factor", 1.0))
        return Rope(_angles(base, self.d), magnitude, interleaved=False)

    def _attention(self, x: Tensor, il: int) -> Tensor:
        n, name = x.shape[0], f"blk.{il}.attn"
        q = self._linear(x, f"{name}_q").view(n, self.n_head, self.d)
        k = self._linear(x, f"{name}_k").view(n, self.n_head_kv, self.d)
        v = self._linear(x, f"{name}_v").view(n, self.n_head_kv, self.d)
        if f"{name}_q_norm.weight" in self._tensors:
            q = self._norm(q, f"{name}_q_norm.weight")
            k = self._norm(k, f"{name}_k_norm.weight")
        window = self.window(il)
        rope = self._rope_full if window is None else self._rope_window
        q, k = rope(q), rope(k)
        size = self.d
        if self.gemma and self.n_layer == GEMMA_27B_LAYERS:
            size = self.n_embd // self.n_head
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (distance < 0) | (distance >= (window or n))
        out = torch.empty(n, self.n_head, self.d, dtype=torch.float64)
        for head in range(self.n_head):
            shared = head * self.n_head_kv // self.n_head
            scores = q[:, head] @ k[:, shared].T / math.sqrt(size)
            out[:, head] = scores.masked_fill_(hidden, -torch.inf).softmax(-1) @ v[:, shared]
        return self._linear(out.flatten(1), f"{name}_output")

    def _feed_forward(self, x: Tensor, il: int) -> Tensor:
        gate = self._linear(x, f"blk.{il}.ffn_gate")
        if self.gemma:
            gate = torch.nn.functional.gelu(gate, approximate="tanh")
        else:
            gate = torch.nn.functional.silu(gate)
        return self._linear(gate * self._linear(x, f"blk.{il}.ffn_up"), f"blk.{il}.ffn_down")

    def _layer(self, x: Tensor, il: int) -> Tensor:
        attn = self._attention(self._norm(x, f"blk.{il}.attn_norm.weight"), il)
        if self.gemma:
            attn = self._norm(attn, f"blk.{il}.post_attention_norm.weight")
        x = x + attn
        ffn = self._feed_forward(self._norm(x, f"blk.{il}.ffn_norm.weight"), il)
        if self.gemma:
            ffn = self._norm(ffn, f"blk.{il}.post_ffw_norm.weight")
        return x + ffn

    def logits(self, tokens: Sequence[int], n_last: int | None) -> npt.NDArray[np.float64]:
        """Logits (n_last or n_tokens, n_vocab)."""
        x = self._embeddings(tokens)
        for il in range(self.n_layer):
            x = self._layer(x, il)
        x = self._norm(x[-n_last:] if n_last else x, "output_norm.weight")
        tied = "output.weight" not in self._tensors
        matrix = self._tensors["token_embd.weight" if tied else "output.weight"]
        parts = []
        for start in range(0, len(matrix.data), ROWS_AT_ONCE):
            rows = dequantize(matrix.data[start : start + ROWS_AT_ONCE], matrix.tensor_type)
            parts.append(x @ torch.from_numpy(rows.copy()).double().T)
        logits = torch.cat(parts, dim=1)
        if "output.bias" in self._tensors:
            logits += self._weight("output.bias")
        cap = self._key("final_logit_softcapping", 0.0)
        return np.asarray((torch.tanh(logits / cap) * cap if cap else logits).numpy())


def _angles(base: float, d: int) -> Tensor:
    return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def _yarn(angles: Tensor, base: float, factor: float, n_ctx: int) -> Tensor:
    """Interpolate slow rotations, keep fast ones, blend those between (YaRN, section 3.2)."""
    d = 2 * len(angles)

    def pair_with(n_rotations: float) -> float:
        return d * math.log(n_ctx / (n_rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_with(32.0)), 0), min(math.ceil(pair_with(1.0)), d - 1)
    index = torch.arange(len(angles), dtype=torch.float64)
    slow = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return angles / factor * slow + angles * (1 - slow)
