"""POST /infill: what goes between two texts, in llama-server's own form."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.body import read_object
from app.api.constraint import read_constraint
from app.api.dialects.native import NativeDialect
from app.api.infill import Room, fim_tokens, infill_prompt
from app.api.jobs import generate, options_for
from app.api.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def infill(request: Request) -> Response:
        body = await read_object(request, service.settings)
        engine, settings = service.engine, service.settings
        fim_tokens(engine.tokenizer.vocab)
        options = options_for(service, body)
        grammar = read_constraint(body, settings.defaults.grammar)
        n_predict = max(settings.defaults.n_predict, options.n_predict)
        room = Room(settings.infill_batch, engine.model.n_ctx, n_predict)
        prompt = await asyncio.to_thread(
            infill_prompt, engine.tokenizer, body, room, suffix_first=settings.spm_infill
        )
        return generate(service, options, [prompt], grammar, NativeDialect)

    return [Route("/infill", infill, methods=["POST"])]
