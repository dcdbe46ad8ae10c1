"""What the model file says about itself, for people and clients."""

from app.engine.facade import ModelInfo
from app.engine.sizes import RunSizes
from app.ggml.gguf_file import GGUFFile
from app.models.hparams import HParams, Pooling

VOCAB_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4}


def model_info(gguf: GGUFFile, hparams: HParams, sizes: RunSizes, pooling: Pooling) -> ModelInfo:
    """Collect the facts that /v1/models and /props show."""
    template = gguf.metadata.get("tokenizer.chat_template")
    rerank = gguf.metadata.get("tokenizer.chat_template.rerank")
    name = gguf.metadata.get("general.name")
    n_params = size = 0
    for info in gguf.tensors.values():
        n_params += info.ne[0] * info.ne[1] * info.ne[2] * info.ne[3]
        size += info.nbytes
    return ModelInfo(
        path=str(gguf.path),
        arch=hparams.arch,
        name=name if isinstance(name, str) else gguf.path.stem,
        ftype=_ftype(gguf),
        vocab_type=VOCAB_TYPES.get(str(gguf.metadata.get("tokenizer.ggml.model")), 0),
        n_vocab=hparams.n_vocab,
        n_ctx=sizes.n_ctx_slot,
        n_ctx_train=hparams.n_ctx_train,
        n_embd=hparams.n_embd,
        n_params=n_params,
        size=size,
        chat_template=template if isinstance(template, str) else None,
        pooling=pooling,
        rerank_template=rerank if isinstance(rerank, str) else None,
    )


def _ftype(gguf: GGUFFile) -> str:
    """Name of the file's main type, from general.file_type, else from what most bytes are."""
    from gguf import LlamaFileType

    number = gguf.metadata.get("general.file_type")
    if isinstance(number, int) and number in LlamaFileType._value2member_map_:
        return str(LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    bytes_of: dict[str, int] = {}
    for info in gguf.tensors.values():
        bytes_of[info.type.name] = bytes_of.get(info.type.name, 0) + info.nbytes
    return max(bytes_of, key=lambda name: bytes_of[name], default="unknown")
