"""Size limits: a file, a function, an argument list and the whole program stay readable.

The limits are where a reader needs a reason; most files and functions are far smaller. What must
be longer is listed by name with the reason.
"""

import ast
import io
import tokenize
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.assets import PROJECT_ROOT

FILE_LIMITS: Final = {"app": 400, "tests": 600, "examples": 200}
NATIVE_FILE_LIMIT: Final = 500
FUNCTION_LIMIT: Final = 60
ARGUMENT_LIMIT: Final = 8
APP_CODE_LIMIT: Final = 34_000

LONG_FUNCTIONS: Final[dict[str, str]] = {}
"""`path::function` → why it may be longer than the limit."""

NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(folder: str) -> list[Path]:
    return sorted((PROJECT_ROOT / folder).rglob("*.py"))


def n_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def functions(source: str) -> list[Function]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def n_positional(function: Function) -> int:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return len([name for name in names if name not in ("self", "cls")])


def function_length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def docstring_lines(tree: ast.Module) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def code_lines(source: str) -> set[int]:
    """Lines that hold code: a limit that counted docstrings would reward leaving them out."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - docstring_lines(ast.parse(source))


def all_functions() -> list[tuple[str, Function]]:
    return [
        (f"{path.relative_to(PROJECT_ROOT)}::{function.name}", function)
        for folder in FILE_LIMITS
        for path in python_files(folder)
        for function in functions(path.read_text("utf-8"))
    ]


@pytest.mark.parametrize("folder", FILE_LIMITS)
def test_no_file_is_too_long(folder: str) -> None:
    long = {str(p): n_lines(p) for p in python_files(folder) if n_lines(p) > FILE_LIMITS[folder]}
    assert not long


def test_no_native_file_is_too_long() -> None:
    sources = [p for p in (PROJECT_ROOT / "app").rglob("*.*") if p.suffix in (".cpp", ".h", ".hpp")]
    long = {str(p): n_lines(p) for p in sources if n_lines(p) > NATIVE_FILE_LIMIT}
    assert not long


def test_no_function_is_too_long() -> None:
    long = {
        name: function_length(function)
        for name, function in all_functions()
        if function_length(function) > FUNCTION_LIMIT and name not in LONG_FUNCTIONS
    }
    assert not long


def test_every_exception_is_still_needed() -> None:
    lengths = {name: function_length(function) for name, function in all_functions()}
    stale = [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= FUNCTION_LIMIT]
    assert not stale


def test_no_function_takes_too_many_positional_arguments() -> None:
    counts = {name: n_positional(function) for name, function in all_functions()}
    assert not {name: n for name, n in counts.items() if n > ARGUMENT_LIMIT}


def test_the_whole_program_stays_small() -> None:
    n_code = sum(len(code_lines(path.read_text("utf-8"))) for path in python_files("app"))
    assert n_code <= APP_CODE_LIMIT


def test_what_explains_the_code_is_not_counted() -> None:
    source = (
        '"""Module."""\n\n# why\ndef f() -> int:\n    """What."""\n    return (\n        1\n    )\n'
    )
    assert code_lines(source) == {4, 6, 7, 8}
