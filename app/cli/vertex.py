"""Google's Vertex AI tells a container its port and paths in variables of its own; llama-server's
rules for them (gcp_params in server-http.cpp, b11434).
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from app.api.settings import PredictSettings, ServerSettings
from app.errors import ConfigError

_log = logging.getLogger(__name__)


def for_vertex(settings: ServerSettings, environ: Mapping[str, str]) -> ServerSettings:
    """Return the settings, with /predict and the platform's port when it says to be one.

    Raises: ConfigError for a port that is none.
    """
    if environ.get("AIP_MODE") != "PREDICTION":
        return settings
    text = environ.get("AIP_HTTP_PORT") or "8080"
    if not text.isdecimal() or int(text) > 65535:
        raise ConfigError(f"AIP_HTTP_PORT {text}: expected a port")
    if int(text) != settings.port:
        _log.warning("port %s by AIP_HTTP_PORT, not %d", text, settings.port)
    health = environ.get("AIP_HEALTH_ROUTE")
    predict = PredictSettings(
        path=_path(environ.get("AIP_PREDICT_ROUTE") or "/predict"),
        health=_path(health) if health else None,
    )
    return replace(settings, port=int(text), predict=predict)


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"
