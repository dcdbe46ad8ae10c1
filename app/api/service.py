"""What the routes work with: the settings, and the engine once there is one.

Made before the port opens, handed the engine by the loading thread when the model is ready; until
then `unavailable` gives the reason. Everything else belongs to the asyncio thread.
"""

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from app.api.errors import UNAVAILABLE, ApiError
from app.api.options import RequestOptions
from app.api.settings import ServerSettings
from app.engine.facade import Engine, EngineState
from app.tokenizer.builtin_templates import BUILTIN_TEMPLATES, CHATML
from app.tokenizer.chat_template import ChatTemplate

_log = logging.getLogger(__name__)

_KEPT_OPTIONS: Final = 1024


@dataclass(frozen=True, slots=True)
class Model:
    """A ready engine and the template of its conversations."""

    engine: Engine
    template: ChatTemplate


def model_of(engine: Engine, settings: ServerSettings) -> Model:
    """Return a ready engine with the template that settings or model file name, else ChatML."""
    source = settings.chat.template or engine.model.chat_template
    if source is None:
        _log.warning("the model has no chat template: ChatML is used")
        source = CHATML
    vocab = engine.tokenizer.vocab
    template = ChatTemplate(
        BUILTIN_TEMPLATES.get(source, source),
        bos_token=vocab.text(vocab.special.bos),
        eos_token=vocab.text(vocab.special.eos),
    )
    return Model(engine, template)


@dataclass(slots=True)
class Service:
    """State of the HTTP room."""

    settings: ServerSettings
    without_model: bool = False
    started_at: float = field(default_factory=time.time)
    _model: Model | None = None
    _options: OrderedDict[int, RequestOptions] = field(default_factory=OrderedDict)

    def attach(self, model: Model) -> None:
        """Begin to serve; may be called from any thread."""
        self._model = model

    @property
    def model(self) -> Model:
        """The model. Raises: ApiError while there is none."""
        if self._model is None:
            raise ApiError(UNAVAILABLE, "Loading model")
        return self._model

    @property
    def engine(self) -> Engine:
        """The engine. Raises: ApiError while there is none."""
        return self.model.engine

    def unavailable(self) -> ApiError | None:
        """Return why nothing can be served now, or None."""
        if self.without_model:
            return None
        if self._model is None or self._model.engine.state is EngineState.LOADING:
            return ApiError(UNAVAILABLE, "Loading model")
        engine = self._model.engine
        if engine.state in (EngineState.READY, EngineState.SLEEPING):
            return None
        return ApiError(UNAVAILABLE, engine.error or f"the engine is {engine.state.value}")

    def remember(self, task: int, options: RequestOptions) -> None:
        """Keep the options of a task for /slots, and forget those of long ago."""
        self._options[task] = options
        while len(self._options) > _KEPT_OPTIONS:
            self._options.popitem(last=False)

    def options_of(self, task: int) -> RequestOptions | None:
        """Return the options of a task, if they are still known."""
        return self._options.get(task)
