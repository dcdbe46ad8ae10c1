"""What sampling is told about a model's vocabulary."""

import numpy as np

from app.engine.token_sampler import SamplingVocabulary
from app.sampling.chain import SamplerFactory
from app.sampling.params import SamplingParams
from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.tiny_vocab import byte_level


def test_tokens_that_the_file_suppresses_are_never_chosen() -> None:
    tokenizer = load_tokenizer(byte_level(suppress_tokens=np.array([65, 66], np.int32)))
    n_vocab = tokenizer.vocab.n_tokens
    sampler = SamplerFactory(SamplingVocabulary(tokenizer, n_vocab)).build(
        SamplingParams(temperature=0.0)
    )
    logits = np.zeros(n_vocab, np.float32)
    logits[[65, 66, 67]] = (9.0, 8.0, 7.0)
    assert sampler.sample(logits).token == 67
