"""The script for bash completes what --help lists."""

import shutil
import subprocess

import pytest

from app.cli.flags.completion import completion_script
from app.cli.flags.table import OPTIONS


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_flags_and_leaves_file_names_to_itself() -> None:
    script = completion_script("llama-serve", OPTIONS)
    asked = '_llama_serve llama-serve "$0" x; printf "%s\\n" "${COMPREPLY[@]}"; complete -p'

    def complete(word: str) -> list[str]:
        command = ["bash", "--norc", "-c", script + asked, word]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.split("\n")

    assert complete("--grammar")[:2] == ["--grammar", "--grammar-file"]
    assert set(complete("--no-")) > {"--no-ui", "--no-mmap", "--no-warmup"}
    *found, registered, _ = complete("gram")
    assert found == [""]
    assert registered.endswith("-F _llama_serve llama-serve")
