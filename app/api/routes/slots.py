"""POST /slots/{id}?action=save|restore|erase, with --slot-save-path."""

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_object
from app.api.errors import NOT_SUPPORTED, ApiError
from app.api.file_name import is_file_name
from app.api.json_value import JsonObject
from app.api.responses import json_response
from app.api.service import Service
from app.engine.request import SlotAction, SlotDeed, SlotReport
from app.errors import RequestError

_MAX_DIGITS: Final = 9


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def act(request: Request) -> Response:
        folder = service.settings.slot_save_path
        if folder is None:
            raise ApiError(
                NOT_SUPPORTED,
                "This server does not support slots action. Start it with `--slot-save-path`",
            )
        id_slot = _id_slot(request.path_params["id_slot"])
        deed = _deed(request.query_params.get("action", ""))
        name = ""
        if deed is not SlotDeed.ERASE:
            body = await read_object(request, service.settings)
            name = fields.text(body, "filename", "")
            if not is_file_name(name):
                raise RequestError("Invalid filename", "filename")
        report = await service.engine.slot_action(SlotAction(deed, id_slot, Path(folder, name)))
        return json_response(_told(deed, name, report))

    return [Route("/slots/{id_slot}", act, methods=["POST"])]


def _id_slot(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise RequestError("Invalid slot ID", "id_slot")
    return int(text)


def _deed(text: str) -> SlotDeed:
    try:
        return SlotDeed(text)
    except ValueError:
        raise RequestError("Invalid action", "action") from None


def _told(deed: SlotDeed, name: str, report: SlotReport) -> JsonObject:
    match deed:
        case SlotDeed.SAVE:
            return {
                "id_slot": report.id_slot,
                "filename": name,
                "n_saved": report.n_tokens,
                "n_written": report.n_bytes,
                "timings": {"save_ms": report.ms},
            }
        case SlotDeed.RESTORE:
            return {
                "id_slot": report.id_slot,
                "filename": name,
                "n_restored": report.n_tokens,
                "n_read": report.n_bytes,
                "timings": {"restore_ms": report.ms},
            }
        case SlotDeed.ERASE:
            return {"id_slot": report.id_slot, "n_erased": report.n_tokens}
