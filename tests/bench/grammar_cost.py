"""What following a grammar costs a token: prints mean, median, 99th percentile and worst.

    python -m tests.bench.grammar_cost

Run by hand; needs the asset smollm2, whose vocabulary has 49,152 tokens. A text of each grammar is
followed token by token, once cold and then warm, in three ways: `checked` asks for the next token
alone, as the sampler does while the model's own choice fits, `masked` for all tokens, as it does
when that choice does not, and `redone` has the default sampler choose among these once more, which
is all that a grammar can add. Time is the processor's, so that other work on the machine does not
count. The bound is 1 ms a token, warm.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from app.engine.constraint import make_constraint
from app.engine.request import Grammar, GrammarKind
from app.engine.token_sampler import SamplingVocabulary
from app.ggml.gguf_file import GGUFFile
from app.sampling.chain import SamplerFactory
from app.sampling.constraint import Constraint
from app.sampling.params import SamplingParams
from app.tokenizer.base import Tokenizer
from app.tokenizer.factory import load_tokenizer
from tests.helpers.assets import asset_path

ROUNDS: Final = 20
BOUND_MS: Final = 1.0
TABLE_HEAD: Final = (
    "| grammar | tokens | mean ms | median | 99 % | worst |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |\n"
)
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "pattern": r"^[a-z]+@[a-z]+\.org$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "mail", "tags", "born"],
}
ADA: Final = (
    '{"name": "Ada Lovelace", "age": 36, "mail": "ada@example.org", '
    '"tags": ["red", "blue", "green"], "born": "1815-12-10"}'
)
SUMS: Final = (
    'root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\n'
    'term ::= ident | num | "(" ws expr ")" ws\nident ::= [a-z] [a-z0-9_]* ws\n'
    "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*"
)
PROSE: Final = "The river was wide, and nobody on the far bank could hear them call. " * 6

CASES: Final = {
    "JSON schema of an object": (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)), ADA),
    "any JSON": (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'), ADA),
    "long string": (
        Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}'),
        json.dumps(PROSE.strip()),
    ),
    "arithmetic in GBNF": (Grammar(GrammarKind.GBNF, SUMS), "(a1 +22) *b -3 = 40\n" * 8),
    "free text in GBNF": (Grammar(GrammarKind.GBNF, "root ::= [^<]*"), PROSE),
}


Step = Callable[[Constraint, int], object]


def follow(constraint: Constraint, tokens: list[int], step: Step) -> list[float]:
    """Return the milliseconds for each token."""
    constraint.reset()
    times: list[float] = []
    for token in tokens:
        start = time.process_time()
        step(constraint, token)
        constraint.accept(token)
        times.append((time.process_time() - start) * 1e3)
    return times


def steps(tokenizer: Tokenizer) -> dict[str, Step]:
    """Return the ways of asking a grammar; no choice of the noise here is one that fits."""
    n_vocab = tokenizer.vocab.n_tokens
    logits = np.random.default_rng(1).normal(0, 3, n_vocab).astype(np.float32)
    sampler = SamplerFactory(SamplingVocabulary(tokenizer, n_vocab)).build(SamplingParams(seed=1))
    return {
        "checked": lambda constraint, token: constraint.allows(token),
        "masked": lambda constraint, _: constraint.mask(),
        "redone": lambda constraint, _: sampler.sample(logits, constraint.mask()),
    }


def line(name: str, times: list[float]) -> str:
    """Return a row of the table."""
    ordered = sorted(times)
    figures = (
        statistics.fmean(times),
        statistics.median(times),
        ordered[int(len(ordered) * 0.99)],
        ordered[-1],
    )
    return f"| {name} | {len(times)} | " + " | ".join(f"{ms:.3f}" for ms in figures) + " |\n"


def measure(tokenizer: Tokenizer) -> float:
    """Print the table; return the largest warm mean."""
    sys.stdout.write(TABLE_HEAD)
    ways = steps(tokenizer)
    largest = 0.0
    for name, (grammar, text) in CASES.items():
        tokens = tokenizer.encode(text, add_special=False, parse_special=False)
        constraint = make_constraint(grammar, tokenizer)
        cold = follow(constraint, tokens, ways["masked"])
        sys.stdout.write(line(f"{name}, masked, cold", cold))
        for way, step in ways.items():
            times = [ms for _ in range(ROUNDS) for ms in follow(constraint, tokens, step)]
            sys.stdout.write(line(f"{name}, {way}", times))
            largest = max(largest, statistics.fmean(times))
    return largest


def main() -> int:
    """Measure with SmolLM2's vocabulary; return 1 when a mean is over the bound."""
    with GGUFFile.open(asset_path("smollm2")) as gguf:
        tokenizer = load_tokenizer(gguf.metadata)
    return int(measure(tokenizer) > BOUND_MS)


if __name__ == "__main__":
    raise SystemExit(main())
