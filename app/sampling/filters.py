"""The filters of the chain: functions from Candidates to fewer, or rescaled, Candidates.

Called by the chain in the order of the request's `samplers`. Each follows the sampler of the same
name in llama.cpp's src/llama-sampler.cpp: the same comparisons, the same float32 steps, the same
decision whether the result is sorted. A filter keeps at least one candidate.
"""

from typing import Final

import numpy as np

from app.sampling.candidates import (
    F32,
    Candidates,
    log_f32,
    softmax,
    sum_f32,
    top_order,
)
from app.sampling.rng import Mt19937

_TOP_P_FIRST_TRY: Final = 256
_TOP_P_NEXT_TRY: Final = 16
_F32_MIN: Final = np.float32(np.finfo(np.float32).min)


def top_k(c: Candidates, k: int) -> Candidates:
    """Keep the k best, sorted."""
    return c.sort(k)


def top_p(c: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep the fewest best whose probabilities reach p, sorted, and no fewer than min_keep."""
    probs = softmax(c)
    if c.is_sorted:
        return c.head(_reached(probs, p, min_keep))
    n = min(_TOP_P_FIRST_TRY, c.size)
    while True:
        order = top_order(c.logits, n)
        kept = _reached(probs[order], p, min_keep)
        if kept <= n or n == c.size:
            return c.take(order[:kept], True)
        n = min(_TOP_P_NEXT_TRY * n, c.size)


def _reached(probs: F32, p: float, min_keep: int) -> int:
    """Return how many leading probabilities reach p; more than there are when all do not."""
    total = np.add.accumulate(probs)
    return max(int(np.searchsorted(total, np.float32(p), side="left")) + 1, min_keep)


def min_p(c: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep those at least p times as probable as the best; the order stays as it is."""
    drop = log_f32(np.array(p, dtype=np.float32))
    if not c.is_sorted:
        bound = max(c.logits.max(), _F32_MIN) + drop
        kept = np.flatnonzero(c.logits >= bound)
        if kept.size >= max(min_keep, 1):
            return c.take(kept, False)
        c = c.sort()
    n = int(np.count_nonzero(c.logits >= c.logits[0] + drop))
    return c.head(max(n, min_keep, 1))


def typical_p(c: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep those whose surprise is closest to the entropy, until their probabilities exceed p."""
    c = c.sort()
    probs = softmax(c)
    surprise = -log_f32(probs)
    # 0 * inf would make the entropy NaN; a token without probability adds nothing to it.
    entropy = sum_f32(np.where(probs > 0, probs * surprise, np.float32(0)))
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    total = np.add.accumulate(probs[order])
    n = int(np.searchsorted(total, np.float32(p), side="right")) + 1
    return c.take(order[: max(n, min_keep)], False)


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Mask what is more than n standard deviations below the best; nobody leaves the list."""
    if c.size <= 1:
        return c
    valid = c.logits[c.logits != -np.inf]
    if not valid.size:
        return c
    count = np.float32(valid.size)
    off = (valid - sum_f32(valid) / count).astype(np.float64)
    deviation = np.sqrt(sum_f32((off * off).astype(np.float32)) / count)
    bound = valid.max() - np.float32(n) * deviation
    masked = np.where(c.logits < bound, np.float32(-np.inf), c.logits)
    return c.with_logits(masked, c.is_sorted)


def xtc(
    c: Candidates, probability: float, threshold: float, min_keep: int, rng: Mt19937
) -> Candidates:
    """With some probability drop all but the last of the tokens that reach the threshold."""
    if c.size < 2 or rng.uniform_f32() > np.float32(probability):
        return c
    c = c.sort()
    above = softmax(c) >= np.float32(threshold)
    last = (c.size if above.all() else int(np.argmin(above))) - 1
    if last <= 0 or c.size - last < min_keep:
        return c
    return c.span(last, c.size)


def temperature(c: Candidates, temp: float) -> Candidates:
    """Divide the logits by temp; zero or less leaves only the first best."""
    scale = np.float32(temp)
    if scale > 0:
        scaled = c.logits / scale
        if np.isfinite(scaled.max()):
            return c.with_logits(scaled, c.is_sorted)
    best = int(c.logits.argmax())
    only = np.full_like(c.logits, -np.inf)
    only[best] = c.logits[best]
    return c.with_logits(only, c.is_sorted)


def dynamic_temperature(c: Candidates, temp: float, spread: float, exponent: float) -> Candidates:
    """Use a temperature within temp ± spread that grows with the entropy of the candidates."""
    if c.size <= 1:
        return c
    low = max(np.float32(0), np.float32(temp) - np.float32(spread))
    high = np.float32(temp) + np.float32(spread)
    c = c.sort()
    probs = softmax(c)
    probs = probs[probs > 0]
    entropy = -sum_f32(probs * log_f32(probs))
    most = -log_f32(np.float32(1) / np.array(c.size, dtype=np.float32))
    share = np.power(np.float64(entropy / most), np.float64(np.float32(exponent)))
    return temperature(c, float(low + (high - low) * np.float32(share)))
