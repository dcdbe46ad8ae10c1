"""The known pre-tokenizers: `tokenizer.ggml.pre` → patterns and habits.

Read by `factory`. A row holds the patterns that the model was trained with, in the form in which
llama.cpp applies them (src/llama-vocab.cpp): where its engine knows no difference between upper and
lower case beyond ASCII, or takes no space for a letter, neither do these. A wrong row means other
ids and a worse model, so an unknown name is refused. A new pre-tokenizer is one row here.
"""

from types import MappingProxyType
from typing import Final

from app.tokenizer.pretokenize import PreTokenizer, Threes

# The parts from which the models' patterns are made.
_SUFFIX: Final = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_MAYBE_SUFFIX: Final = f"(?:{_SUFFIX})?"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_MARKS_SLASH: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LETTERS_ACCENTS: Final = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_ASCII_MARK: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_KANA_HAN: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN: Final = (
    r"\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef"
    r"\U0002f800-\U0002fa1f"
)


def _two_cases(upper: str, lower: str, suffix: str) -> str:
    """Return words that end where lower case turns into upper case."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"


# Beyond ASCII a letter may stand in the upper-case and in the lower-case part of a word.
_CASES: Final = (r"[\p{L}--[a-z]]", r"[\p{L}--[A-Z]]")
_CASES_ACCENTS: Final = (r"[[\p{L}\p{M}]--[a-z]]", r"[[\p{L}\p{M}]--[A-Z]]")

_GPT2: Final = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_SUFFIX}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2: Final = rf"{_SUFFIX}|{_LETTERS}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35: Final = (
    rf"{_SUFFIX}|{_LETTERS_ACCENTS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K: Final = rf"{_two_cases(*_CASES, _MAYBE_SUFFIX)}|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
_DEEPSEEK_WORD: Final = rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3: Final = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_BLOOM: Final = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES: Final = r"\n+|[^\n]+"
_MATHS: Final = r"[\p{P}$+<=>^~|]+"
_MATHS_TICK: Final = r"[\p{P}$+<=>^~|`]+"
_ACCENTED: Final = rf"{_LETTERS_ACCENTS}{_MAYBE_SUFFIX}"
_CJK_WIDE: Final = r"[[\u0800-\u9fa5\uac00-\ud7ff]--\s]+"
_TEKKEN: Final = rf"{_two_cases(*_CASES, '')}|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_GRANITE: Final = (
    rf"{_two_cases(*_CASES_ACCENTS, _MAYBE_SUFFIX)}|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
)
_KIMI: Final = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}--[{_HAN}]]+{_MAYBE_SUFFIX}"
    rf"|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
)
_EXAONE_MOE: Final = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING: Final = rf"{_SUFFIX}|{_LETTERS}|\p{{N}}|{_MARKS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED: Final = rf"{_SUFFIX}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_UFAKZEKA: Final = rf"{_LETTERS}|\p{{N}}|{_MARKS}|{_SPACES}"
_MINICPM5: Final = rf"{_SUFFIX}|{_LETTERS}|\p{{N}}+|{_MARKS}|{_SPACES}"
_TINY_AYA: Final = rf"{_ACCENTED}|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
_YOUTU: Final = rf"{_ACCENTED}|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_YOUTU_SCRIPTS: Final = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    r"|[\u3105-\u312f]+"
    rf"|{_KANA_HAN}"
)
_SPARK: Final = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_AFMOE_SCRIPTS: Final = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    r"\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    r"\u1100-\u11ff]+"
)
_ASCII_MARKS: Final = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+"

# Letters of the scripts with two cases, as far as DeepSeek LLM's tokenizer knows them.
_CASED: Final = (
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    r"\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    r"\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    r"\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    r"\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    r"\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    r"\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    r"\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    r"\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    r"\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    r"\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    r"\U0001e900-\U0001e943"
)

_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    _ASCII_MARKS,
    r"\s+\Z",
    _CJK_WIDE,
    r"\p{N}+",
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}")
_CHAMELEON: Final = (
    r"<sentinel:[0-9]+>",
    r"IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)


def _row(
    *patterns: str | Threes,
    ignore_merges: bool = False,
    add_bos: bool = False,
    no_default_bos: bool = False,
) -> PreTokenizer:
    return PreTokenizer(
        patterns=patterns,
        ignore_merges=ignore_merges,
        add_bos=add_bos,
        no_default_bos=no_default_bos,
    )


DEFAULT: Final = _row(_MATHS, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
"""What is used, with a warning, where the file names none."""

GEMMA4: Final = PreTokenizer(patterns=(_LINES,), raw=True, forced_bos=True)

_ROWS: Final[dict[str, PreTokenizer]] = {
    "default": DEFAULT,
    "gpt-2 phi-2 gigachat mellum modern-bert exaone4 a.x-4.0 mpt olmo jais trillion": _row(_GPT2),
    "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe": _row(_GPT2),
    "granite-docling": _row(_GPT2),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _row(r"\p{N}", _GPT2),
    "falcon": _row(_MATHS_TICK, _GPT2, r"[0-9][0-9][0-9]"),
    "chameleon": _row(*_CHAMELEON, add_bos=True),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _row(
        _LLAMA3, ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe": _row(_LLAMA3),
    "chatglm-bpe": _row(_LLAMA3, no_default_bos=True),
    "glm4 glm5": _row(_LLAMA3, ignore_merges=True, no_default_bos=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _row(_QWEN2),
    "qwen35": _row(_QWEN35),
    "laguna": _row(_LINES, _QWEN2),
    "ufakzeka": _row(_UFAKZEKA),
    "minicpm5": _row(r"\p{N}{1,3}", _MINICPM5, ignore_merges=True),
    "bailingmoe bailingmoe2 llada-moe": _row(_BAILING),
    "seed-coder": _row(_SEED),
    "exaone-moe": _row(_EXAONE_MOE),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _row(_O200K),
    "tekken": _row(_TEKKEN, ignore_merges=True, add_bos=True),
    "granite-embed-multi-97m": _row(_GRANITE, ignore_merges=True),
    "kimi-k2": _row(_KIMI),
    "tiny_aya cohere2moe": _row(Threes(r"\p{N}"), _TINY_AYA),
    "youtu": _row(_YOUTU_SCRIPTS, _YOUTU, ignore_merges=True),
    "deepseek-llm": _row(*_DEEPSEEK_LLM),
    "deepseek-coder": _row(*_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _row(r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3),
    "spark2_5": _row(r"\p{N}{1,3}", _KANA_HAN, _SPARK, r"\p{N}"),
    "afmoe": _row(Threes(r"\p{N}"), _AFMOE_SCRIPTS, _DEEPSEEK3),
    "poro-chat bloom gpt3-finnish": _row(_BLOOM),
    "viking": _row(_BLOOM, r"\p{N}"),
    "gemma4 granite-embed-multi-311m": GEMMA4,
}

PRE_TOKENIZERS: Final = MappingProxyType(
    {name: row for names, row in _ROWS.items() for name in names.split()}
)
"""Name → row."""
