"""The `generation_settings` of an answer, and their short form in /props and /slots.

Names follow task_params::to_json in llama.cpp's tools/server/server-task.cpp. What this server has
not (speculation, LoRA) is shown as switched off, and so is what concerns the reading of answers.
"""

import math
from dataclasses import replace

from app.api.json_value import JsonObject
from app.api.options import RequestOptions
from app.engine.request import Grammar
from app.sampling.list_kinds import TokenBias
from app.sampling.params import generation_settings as sampling_settings
from app.tokenizer.base import Vocab


def generation_settings(
    options: RequestOptions, vocab: Vocab, grammar: Grammar | None = None, *, short: bool = False
) -> JsonObject:
    """Return every setting that a request was or would be generated with."""
    sampling = options.sampling
    if sampling.ignore_eos:
        forbidden = tuple(TokenBias(token, -math.inf) for token in sorted(vocab.eog))
        sampling = replace(sampling, logit_bias=sampling.logit_bias + forbidden)
    settings: JsonObject = {
        **sampling_settings(sampling, short),
        "max_tokens": options.n_predict,
        "n_predict": options.n_predict,
        "n_keep": options.n_keep,
        "n_discard": options.n_discard,
        "stream": options.stream,
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "speculative.types": "none",
        "timings_per_token": options.timings_per_token,
        "backend_sampling": False,
        "lora": [],
    }
    if not short:
        trigger = None if grammar is None else grammar.trigger
        settings |= {
            "stop": [*options.stop],
            "grammar": "" if grammar is None else grammar.source,
            "grammar_lazy": trigger is not None,
            "grammar_triggers": [] if trigger is None else [{"type": 1, "value": trigger.word}],
            "preserved_tokens": [],
        }
    return settings
