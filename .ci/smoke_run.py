"""Does `make run` serve? Start it on a free port, stream one chat, stop it; time a later start.

Called by .ci/run after the install. The first start may still build native code and fetch the
model; a later one must stream its first token within ten seconds of the command. It gets several
tries, since the machine may have other things to do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

FIRST_START_LIMIT_S = 300.0
WARM_LIMIT_S = 10.0
WARM_TRIES = 4
STOP_LIMIT_S = 60.0
# None that the system gives to whoever asks for any.
PORTS = range(21180, 21280)


def free_port() -> int:
    for port in PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise SystemExit(f"the ports {PORTS} are all taken")


def wait_for_health(base: str, process: subprocess.Popen[bytes], deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"make run ended with {process.returncode} before it served")
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise SystemExit("make run did not answer /health in time")


def stream_chat(base: str) -> tuple[float, str]:
    """Return when the first text came (monotonic seconds) and the whole text."""
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    first, text, done = 0.0, "", False
    with urllib.request.urlopen(request, timeout=300) as response:
        for raw in response:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                piece = choices[0]["delta"].get("content") if choices else None
                first = first or (time.monotonic() if piece else 0.0)
                text += piece or ""
    if not (done and text):
        raise SystemExit(f"the stream ended with done={done} and the text {text!r}")
    return first, text


def start_stream_stop(limit_s: float) -> float:
    """Run the demo once and return the seconds from the command to the first token."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    process = subprocess.Popen(["make", "run", f"PORT={port}"], start_new_session=True)
    try:
        wait_for_health(base, process, started + limit_s)
        first, text = stream_chat(base)
        print(f"first token after {first - started:.1f} s; text: {text!r}", flush=True)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise SystemExit("the port still answers after the stop")
    return first - started


def main() -> int:
    start_stream_stop(FIRST_START_LIMIT_S)
    for _ in range(WARM_TRIES):
        warm = start_stream_stop(FIRST_START_LIMIT_S)
        if warm <= WARM_LIMIT_S:
            return 0
        print(f"warm start took {warm:.1f} s, limit {WARM_LIMIT_S} s", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
