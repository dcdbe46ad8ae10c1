"""The import rules: contracts in pyproject.toml, and what import-linter cannot see."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

from tests.helpers.assets import PROJECT_ROOT

APP = PROJECT_ROOT / "app"
WORKER_NEEDS = {"gguf", "numpy", "torch"}
"""What docker/worker.Dockerfile installs beside this package."""
MAY_READ_ENVIRONMENT = ("cli/", "logs.py")
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv"}


def environment_uses(source: str) -> Iterator[int]:
    """Yield the lines of source that read or write the environment through os."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in ENVIRONMENT_NAMES:
                yield node.lineno
            case ast.ImportFrom(module="os", names=names):
                yield from (node.lineno for n in names if n.name in ENVIRONMENT_NAMES)


def test_imports_keep_every_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT_ROOT)
    failed = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert not failed, capsys.readouterr().out


def test_only_the_command_lines_read_the_environment() -> None:
    found = [
        f"{path.relative_to(PROJECT_ROOT)}:{line}"
        for path in sorted(APP.rglob("*.py"))
        if not str(path.relative_to(APP)).startswith(MAY_READ_ENVIRONMENT)
        for line in environment_uses(path.read_text("utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ as e"],
)
def test_the_environment_rule_sees_each_way_to_read_it(source: str) -> None:
    assert list(environment_uses(source))


def test_every_room_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(PROJECT_ROOT))
        for path in sorted(APP.rglob("*.py"))
        if not ast.get_docstring(ast.parse(Path(path).read_text("utf-8")))
    ]
    assert not silent


def test_every_folder_with_code_is_a_package() -> None:
    bare = {p.parent for p in APP.rglob("*.py") if not (p.parent / "__init__.py").exists()}
    assert not bare


def test_the_worker_needs_no_package_that_its_image_lacks() -> None:
    graph = grimp.build_graph("app", include_external_packages=True, cache_dir=None)
    needed = graph.find_upstream_modules("app.cli.rpc_server")
    roots = {name.split(".")[0] for name in needed} - set(sys.stdlib_module_names) - {"app"}
    assert roots <= WORKER_NEEDS
