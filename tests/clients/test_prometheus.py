"""Debian's Prometheus scrapes /metrics with a key."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.clients.programs import chat_server, system_program
from tests.helpers.eventually import eventually
from tests.helpers.process import free_port, running

KEY = "sekrit"
N_TOKENS = 7
CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: llama
    authorization:
      credentials: {key}
    static_configs:
      - targets: ["{target}"]
  - job_name: stranger
    static_configs:
      - targets: ["{target}"]
"""

pytestmark = pytest.mark.clients


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus, asked by its HTTP API."""

    client: httpx.Client

    def value(self, query: str) -> float | None:
        """The value of a query that selects one series, None while there is none."""
        try:
            answer = self.client.get("/api/v1/query", params={"query": query})
        except httpx.ConnectError:
            return None
        if answer.status_code != 200:
            return None
        found = answer.json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with chat_server("--metrics", "--api-key", KEY) as server:
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(key=KEY, target=server.url.removeprefix("http://")))
        body = {"prompt": "Once upon a time", "n_predict": N_TOKENS, "ignore_eos": True}
        key = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{server.url}/completion", json=body, headers=key, timeout=60)
        assert answer.json()["tokens_predicted"] == N_TOKENS
        command = [
            system_program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        url = f"http://127.0.0.1:{port}"
        with running(command) as process, httpx.Client(base_url=url, timeout=60) as client:
            asked = Prometheus(client)

            def has_scraped() -> bool:
                assert process.process.poll() is None, process.output[-4000:]
                return asked.value('up{job="llama"}') == 1

            eventually(has_scraped)
            yield asked


def test_the_key_lets_it_in(prometheus: Prometheus) -> None:
    assert prometheus.value('up{job="llama"}') == 1


def test_without_the_key_it_is_not_up(prometheus: Prometheus) -> None:
    eventually(lambda: prometheus.value('up{job="stranger"}') is not None)
    assert prometheus.value('up{job="stranger"}') == 0


def test_counters_arrive(prometheus: Prometheus) -> None:
    assert prometheus.value("llamacpp:tokens_predicted_total") == N_TOKENS
    assert prometheus.value("llamacpp:requests_processing") == 0


def test_every_metric_has_its_type(prometheus: Prometheus) -> None:
    answer = prometheus.client.get("/api/v1/metadata").json()["data"]
    types = {name: rows[0]["type"] for name, rows in answer.items() if "llamacpp:" in name}
    assert types["llamacpp:tokens_predicted_total"] == "counter"
    assert types["llamacpp:predicted_tokens_seconds"] == "gauge"
    assert "unknown" not in types.values()
