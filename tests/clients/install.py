"""Installs the clients: Python ones in an environment of their own, those of Node beside it.

Called by `python -m tests.fetch_assets clients`. What is there already is left alone until the
lists of packages change.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.helpers.assets import PROJECT_ROOT, asset_path

FOLDER: Final = PROJECT_ROOT / "tests" / "clients"
PYTHON_LIST: Final = FOLDER / "requirements.txt"
NODE_LIST: Final = FOLDER / "node" / "package.json"


def install() -> None:
    """Make sure of all clients. Raises: CalledProcessError, OSError."""
    target = asset_path("clients")
    ready = target / ".ready"
    wanted = hashlib.sha256(PYTHON_LIST.read_bytes() + NODE_LIST.read_bytes()).hexdigest()
    if ready.is_file() and ready.read_text() == wanted:
        return
    shutil.rmtree(target, ignore_errors=True)
    _install_python(target / "python")
    _install_node(target / "node")
    ready.write_text(wanted)


def _install_python(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "-r", str(PYTHON_LIST)], check=True)


def _install_node(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(NODE_LIST, folder)
    flags = ["--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(["npm", "install", *flags], cwd=folder, check=True)
