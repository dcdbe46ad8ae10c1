"""GET /health, /v1/models, /props, /slots: what the server is and does; POST /props."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.errors import NOT_SUPPORTED, UNAVAILABLE, ApiError
from app.api.generation_settings import generation_settings
from app.api.jobs import options_for
from app.api.json_value import Json, JsonObject
from app.api.responses import json_response
from app.api.service import Service
from app.api.shapes import new_id
from app.engine.facade import EngineState, SlotInfo
from app.version import BUILD_INFO


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""
    media_marker = f"<__media_{new_id('')}__>"

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def models(request: Request) -> Response:
        return json_response(_models(service))

    async def props(request: Request) -> Response:
        return json_response(_props(service) | {"media_marker": media_marker})

    async def change_props(request: Request) -> Response:
        if not service.settings.endpoint_props:
            raise _switched_off("changing global properties", "--props")
        return json_response({"success": True})

    async def slots(request: Request) -> Response:
        if not service.settings.endpoint_slots:
            raise _switched_off("slots endpoint", "--slots")
        infos = service.engine.slots()
        if request.query_params.get("fail_on_no_slot") and all(s.is_processing for s in infos):
            raise ApiError(UNAVAILABLE, "no slot available")
        return json_response([_slot(service, info) for info in infos])

    return [
        Route("/health", health),
        Route("/v1/health", health),
        Route("/models", models),
        Route("/v1/models", models),
        Route("/props", props, methods=["GET"]),
        Route("/props", change_props, methods=["POST"]),
        Route("/slots", slots),
    ]


def _switched_off(what: str, flag: str) -> ApiError:
    return ApiError(NOT_SUPPORTED, f"This server does not support {what}. Start it with `{flag}`")


def _models(service: Service) -> JsonObject:
    settings, info = service.settings, service.engine.model
    name = settings.model_name
    entry: JsonObject = {
        "id": name,
        "aliases": [*settings.aliases],
        "tags": [*settings.tags],
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": info.vocab_type,
            "n_vocab": info.n_vocab,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.size,
            "ftype": info.ftype,
        },
    }
    ollama: JsonObject = {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
    return {"models": [ollama], "object": "list", "data": [entry]}


def _props(service: Service) -> JsonObject:
    settings, engine, template = service.settings, service.engine, service.model.template
    info, vocab = engine.model, engine.tokenizer.vocab
    return {
        "default_generation_settings": {
            "params": generation_settings(options_for(service, {}), vocab, short=True),
            "n_ctx": info.n_ctx,
        },
        "total_slots": engine.n_slots,
        "model_alias": settings.model_name,
        "model_ftype": info.ftype,
        "model_path": info.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.endpoint_slots,
        "endpoint_props": settings.endpoint_props,
        "endpoint_metrics": settings.endpoint_metrics,
        "ui": settings.ui,
        "ui_settings": {},
        "chat_template": template.source,
        "chat_template_caps": {**template.caps.as_dict()},
        "bos_token": vocab.text(vocab.special.bos),
        "eos_token": vocab.text(vocab.special.eos),
        "build_info": BUILD_INFO,
        "is_sleeping": engine.state is EngineState.SLEEPING,
        "cors_proxy_enabled": settings.cors_proxy,
    }


def _slot(service: Service, info: SlotInfo) -> Json:
    """A slot; what its task is about only once it had one, texts only for debugging."""
    shown: JsonObject = {
        "id": info.id,
        "n_ctx": info.n_ctx,
        "speculative": False,
        "is_processing": info.is_processing,
    }
    if info.request is None:
        return shown
    debug = service.settings.slots_debug
    options = service.options_of(info.id_task) or options_for(service, {})
    shown |= {
        "id_task": info.id_task,
        "n_prompt_tokens": info.n_prompt_tokens,
        "n_prompt_tokens_processed": info.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": info.n_prompt_tokens_cache,
        "params": generation_settings(
            options, service.engine.tokenizer.vocab, info.request.grammar, short=not debug
        ),
        "next_token": [
            {
                "has_next_token": info.has_next_token,
                "has_new_line": info.has_new_line,
                "n_remain": info.n_remain,
                "n_decoded": info.n_decoded,
            }
        ],
    }
    if debug:
        shown["prompt"] = service.engine.tokenizer.decode(info.request.prompt, special=True)
    return shown
