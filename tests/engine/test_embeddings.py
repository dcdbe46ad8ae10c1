"""Embeddings of tiny models: as stock llama.cpp's, alone as in company, here as on workers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from app.engine.config import CpuExecutor, EngineConfig, FlashAttention
from app.engine.errors import InputTooLargeError
from app.engine.request import Embedded, Failed, Finished, GenerationRequest
from app.errors import ConfigError, UnsupportedError
from app.ggml.gguf_file import MetaValue
from app.models.hparams import Pooling
from app.sampling.params import SamplingParams
from tests.helpers.assets import asset
from tests.helpers.bert_vocab import bert_vocab
from tests.helpers.local_engine import Asker, running_engine, small_run
from tests.helpers.server_process import own_workers
from tests.helpers.stock_embeddings import stock_embeddings
from tests.helpers.tiny_gguf import ENCODERS, TinyConfig, write_tiny

TEXTS = ("Hello world, what a fine day!", "This is a test", "a " * 120, "x")
N_EMBD = 64
ARCHITECTURES = ("bert", "nomic-bert", "llama", "gemma3", "qwen3")
CASES = [
    *(("bert", pooling) for pooling in Pooling),
    ("nomic-bert", Pooling.NONE),
    ("nomic-bert", Pooling.MEAN),
    ("llama", Pooling.NONE),
    ("llama", Pooling.MEAN),
    ("gemma3", Pooling.LAST),
    ("qwen3", Pooling.CLS),
    ("qwen3", Pooling.RANK),
]

Rows = npt.NDArray[np.float32]


def classifier(n_hidden: int, n_labels: int) -> dict[str, Rows]:
    rng = np.random.default_rng(5)
    shapes = {"cls.output.weight": (n_labels, N_EMBD)}
    if n_hidden:
        shapes |= {"cls.weight": (n_hidden, N_EMBD)}
    found = {name: rng.standard_normal(ne) / 8 for name, ne in shapes.items()}
    if n_hidden:
        found |= {"cls.bias": rng.standard_normal(n_hidden), "cls.output.bias": np.ones(n_labels)}
    return {name: values.astype(np.float32) for name, values in found.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each architecture; bert and qwen3 can rank."""
    folder = tmp_path_factory.mktemp("embeddings")
    words = bert_vocab(folder)
    tensors = {"bert": classifier(N_EMBD, 1), "qwen3": classifier(0, 2)}
    labels: dict[str, dict[str, MetaValue]] = {
        "qwen3": {"qwen3.classifier.output_labels": ["yes", "no"]}
    }
    return {
        arch: write_tiny(
            folder / f"{arch}.gguf",
            words if arch in ENCODERS else asset("stories260k"),
            TinyConfig(
                arch,
                n_layer=3,
                n_ctx_train=512,
                extra=labels.get(arch, {}),
                extra_tensors=tensors.get(arch, {}),
            ),
        )
        for arch in ARCHITECTURES
    }


def config(path: Path, pooling: Pooling, **changes: object) -> EngineConfig:
    base: dict[str, object] = {"cpu_executor": CpuExecutor.REFERENCE, "warmup": False}
    sizes: dict[str, object] = {"n_ctx": 512, "n_parallel": 4, "kv_unified": True, "embeds": True}
    return small_run(path, **(base | sizes | {"pooling": pooling} | changes))  # type: ignore[arg-type]


def embed(asker: Asker, texts: Sequence[str]) -> list[Rows]:
    """Rows of each text, all asked for at the same time."""

    async def one(text: str) -> Rows:
        request = GenerationRequest(
            tuple(asker.tokens(text)), SamplingParams(), cache_prompt=False, embeds=True
        )
        generation = await asker.engine.submit(request)
        events = [event async for event in generation.events()]
        if isinstance(events[-1], Failed):
            raise events[-1].error
        assert isinstance(events[-1], Finished)
        (rows,) = (event.rows for event in events if isinstance(event, Embedded))
        return rows

    async def everything() -> list[Rows]:
        return list(await asyncio.gather(*(one(text) for text in texts)))

    return asyncio.run(everything())


def lowest_cosine(found: Rows, wanted: Rows) -> float:
    assert found.shape == wanted.shape
    products = (found * wanted).sum(axis=1)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    return float((products / lengths).min())


@pytest.mark.peer_v8
@pytest.mark.parametrize(("arch", "pooling"), CASES)
def test_embeddings_are_those_of_stock(
    arch: str, pooling: Pooling, models: dict[str, Path]
) -> None:
    n = N_EMBD if pooling is not Pooling.RANK else {"bert": 1, "qwen3": 2}[arch]
    stock = stock_embeddings(models[arch], TEXTS, pooling.name.lower(), n)
    for executor in CpuExecutor:
        with running_engine(config(models[arch], pooling, cpu_executor=executor)) as asker:
            found = embed(asker, TEXTS)
        for rows, wanted in zip(found, stock, strict=True):
            assert lowest_cosine(rows, wanted) > 0.9999
            # Stock looks GELU up in a table of half-precision numbers.
            assert np.abs(rows - wanted).max() < 0.01


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_text_in_company_is_as_alone(arch: str, models: dict[str, Path]) -> None:
    with running_engine(config(models[arch], Pooling.MEAN)) as asker:
        alone = [embed(asker, [text])[0] for text in TEXTS]
        together = embed(asker, TEXTS * 2)
    for rows, wanted in zip(together, alone * 2, strict=True):
        # A last bit may tip the rounding of a cached key; a wrong mask costs 0.1 and more.
        np.testing.assert_allclose(rows, wanted, atol=2e-4)


@pytest.mark.parametrize("arch", ["bert", "nomic-bert", "qwen3"])
@pytest.mark.parametrize("pooling", [Pooling.NONE, Pooling.CLS])
def test_flash_attention_changes_no_more_than_rounding(
    arch: str, pooling: Pooling, models: dict[str, Path]
) -> None:
    found = []
    for flash in (FlashAttention.ON, FlashAttention.OFF):
        with running_engine(config(models[arch], pooling, flash_attn=flash)) as asker:
            found.append(embed(asker, TEXTS))
    for one, other in zip(*found, strict=True):
        assert lowest_cosine(one, other) > 0.99999


def test_later_words_count_for_an_encoder_and_not_for_a_decoder(models: dict[str, Path]) -> None:
    pair = ("one two three", "one two four")
    for arch, is_equal in (("bert", False), ("qwen3", True)):
        with running_engine(config(models[arch], Pooling.CLS)) as asker:
            one, other = embed(asker, pair)
        assert np.allclose(one, other, atol=1e-5) is is_equal


def test_workers_embed_as_this_machine(models: dict[str, Path]) -> None:
    with own_workers(2) as endpoints:
        for arch, pooling in (
            ("bert", Pooling.RANK),
            ("bert", Pooling.MEAN),
            ("qwen3", Pooling.RANK),
        ):
            with running_engine(config(models[arch], pooling)) as asker:
                local = embed(asker, TEXTS)
            for split in ((), (1.0, 3.0), (3.0, 1.0)):
                cut = config(
                    models[arch], pooling, rpc_endpoints=tuple(endpoints), tensor_split=split
                )
                with running_engine(cut) as asker:
                    pooled = embed(asker, TEXTS)
                for rows, wanted in zip(pooled, local, strict=True):
                    assert lowest_cosine(rows, wanted) > 0.9999


def test_a_text_larger_than_a_micro_batch_is_refused_unless_it_may_be_cut(
    models: dict[str, Path],
) -> None:
    long = "a b c d e f g h " * 8
    with (
        running_engine(config(models["bert"], Pooling.LAST, n_ubatch=32)) as asker,
        pytest.raises(InputTooLargeError, match=r"input \(66 tokens\) is too large to process"),
    ):
        embed(asker, [long])
    with running_engine(config(models["qwen3"], Pooling.LAST)) as asker:
        whole = embed(asker, [long])[0]
    with running_engine(config(models["qwen3"], Pooling.LAST, n_ubatch=32)) as asker:
        np.testing.assert_allclose(embed(asker, [long])[0], whole, atol=1e-5)


def test_text_and_embeddings_come_from_one_server(models: dict[str, Path]) -> None:
    with running_engine(config(models["llama"], Pooling.MEAN)) as asker:
        before = asker.greedy("Once upon a time", 8)
        rows = embed(asker, TEXTS)
        assert asker.greedy("Once upon a time", 8).tokens == before.tokens
        assert [r.shape for r in rows] == [(1, N_EMBD)] * len(TEXTS)


def test_an_encoder_writes_no_text(models: dict[str, Path]) -> None:
    with (
        running_engine(config(models["bert"], Pooling.MEAN)) as asker,
        pytest.raises(UnsupportedError, match="'bert' makes embeddings, no text"),
    ):
        asker.greedy("Once upon a time", 8)


def test_a_model_without_a_classifier_does_not_rank(models: dict[str, Path]) -> None:
    from app.engine.loader import load_model

    with pytest.raises(ConfigError, match="no classifier"):
        load_model(config(models["llama"], Pooling.RANK), lambda *_: None, lambda _: None)
