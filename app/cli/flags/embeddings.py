"""Flags about embeddings and reranking: they become parts of EngineConfig and ServerSettings."""

from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option

EMBEDDINGS: Final = Group(
    "embeddings",
    (
        Option(
            dest="embeddings",
            names=("--embedding", "--embeddings"),
            env="LLAMA_ARG_EMBEDDINGS",
            default=False,
            help="offer the embedding endpoints",
        ),
        Option(
            dest="reranking",
            names=("--rerank", "--reranking"),
            env="LLAMA_ARG_RERANKING",
            default=False,
            help="offer the reranking endpoints; the model must be a reranker",
        ),
        Option(
            dest="pooling",
            names=("--pooling",),
            read=readers.one_of("none", "mean", "cls", "last", "rank"),
            metavar="{none,mean,cls,last,rank}",
            env="LLAMA_ARG_POOLING",
            help="how a text's vectors become one; default is the model's",
        ),
        Option(
            dest="embd_normalize",
            names=("--embd-normalize",),
            read=readers.within(-1),
            metavar="N",
            default=2,
            help="length of embeddings: -1 as they are, 0 largest element 32760, 1 taxicab, 2 "
            "Euclidean, above that p-norm",
        ),
    ),
)
