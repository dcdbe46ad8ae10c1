"""Hostile and broken templates: a typed error in time, and the next render works."""

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import RequestError
from app.tokenizer.template_sandbox import RenderLimits, TemplateLimitError, TemplateSandbox


@pytest.fixture(scope="module")
def brief() -> Iterator[TemplateSandbox]:
    """A sandbox whose renders may take a second."""
    sandbox = TemplateSandbox(RenderLimits(time_s=1.0))
    yield sandbox
    sandbox.close()


ENDLESS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}",
    "{% set n=namespace(x=1) %}{% for i in range(50) %}{% set n.x=[n.x]*2 %}{% endfor %}{{ n.x }}",
    "{{ (9 ** 99999) ** 999 }}",
)
GREEDY = (
    "{{ 'a' * 10**10 }}",
    "{{ 'a' | center(10**10) }}",
    "{{ '%9999999999d' % 1 }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
    "{{ [1] * 10**10 }}",
)
PRYING = (
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__self__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__base__.__subclasses__() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
)


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_runs_on_is_stopped_in_time(source: str, brief: TemplateSandbox) -> None:
    brief.render("warm", {})
    with pytest.raises(TemplateLimitError, match="longer than 1 s"):
        brief.render(source, {})
    assert brief.render("{{ 1 + 1 }}", {}) == "2"


@pytest.mark.parametrize("source", GREEDY)
def test_a_template_that_wants_memory_gets_none(source: str, brief: TemplateSandbox) -> None:
    with pytest.raises(RequestError, match=r"too much memory|longer than 1 s"):
        brief.render(source, {})
    assert brief.render("{{ 1 + 1 }}", {}) == "2"


@pytest.mark.parametrize("source", PRYING)
def test_a_template_cannot_reach_python(source: str, sandbox: TemplateSandbox) -> None:
    try:
        text = sandbox.render(source, {"messages": [{"role": "user"}]})
    except RequestError:
        return
    # jinja prints nothing for an attribute that it hides.
    assert text == ""


def test_a_range_without_measure_is_refused(sandbox: TemplateSandbox) -> None:
    with pytest.raises(RequestError, match=r"Range too big.*line 2"):
        sandbox.render("\n{% for x in range(10**9) %}a{% endfor %}", {})


def test_output_without_measure_is_refused() -> None:
    sandbox = TemplateSandbox(RenderLimits(time_s=60, output_chars=100_000))
    with pytest.raises(RequestError, match="longer than 100000 characters"):
        sandbox.render("{% for i in range(99999) %}{{ 'ab' }}{% endfor %}", {})
    sandbox.close()


def test_a_template_cannot_change_its_input(sandbox: TemplateSandbox) -> None:
    with pytest.raises(RequestError, match="append"):
        sandbox.render("{{ messages.append(1) }}", {"messages": []})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\nb\n{{ 1 / 0 }}", r"division by zero \(line 3 of the template\)"),
        ("a\n{% if %}", r"syntax error.*\(line 2 of the template\)"),
        ("{% macro f() %}\n{{ g() }}{% endmacro %}\n{{ f() }}", r"'g' is undefined \(line 2"),
        ("{{ x | no_such_filter }}", r"no_such_filter"),
        ("\n\n{{ raise_exception('roles must alternate') }}", r"roles must alternate \(line 3"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", r"nested too deeply"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", r"nested too deeply"),
        ("{{ messages | tojson }}{{ undefined | tojson }}", r"Undefined"),
    ],
)
def test_an_error_tells_what_and_where(source: str, message: str, sandbox: TemplateSandbox) -> None:
    with pytest.raises(RequestError, match=message):
        sandbox.render(source, {"messages": []})


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="{}%#-|'\"()[]. \nabforinset1", max_size=60))
def test_any_source_is_rendered_or_refused(sandbox: TemplateSandbox, source: str) -> None:
    try:
        assert isinstance(sandbox.render(source, {}), str)
    except RequestError as error:
        assert str(error).startswith("chat template: ")


def test_input_that_is_no_json_is_refused(sandbox: TemplateSandbox) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value in (object(), b"bytes", nested):
        with pytest.raises(RequestError, match="no JSON values"):
            sandbox.render("", {"x": value})


def test_lone_surrogates_pass_through(sandbox: TemplateSandbox) -> None:
    assert sandbox.render("{{ x }}é", {"x": "\ud800-\udc80"}) == "\ud800-\udc80é"


def test_a_process_that_died_is_replaced() -> None:
    sandbox = TemplateSandbox()
    assert sandbox.render("a", {}) == "a"
    worker = sandbox._worker
    assert worker is not None
    worker.process.kill()
    worker.process.wait()
    with pytest.raises(TemplateLimitError, match="ended with status -9"):
        sandbox.render("a", {})
    assert sandbox.render("b", {}) == "b"
    sandbox.close()


def test_the_process_ends_with_its_owner() -> None:
    sandbox = TemplateSandbox()
    sandbox.render("a", {})
    worker = sandbox._worker
    assert worker is not None
    del sandbox
    assert worker.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker.process.pid, 0)


def test_threads_may_render_at_once(sandbox: TemplateSandbox) -> None:
    results: dict[int, str] = {}

    def render(i: int) -> None:
        for _ in range(20):
            results[i] = sandbox.render("{{ x }}", {"x": i})

    threads = [threading.Thread(target=render, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: str(i) for i in range(8)}
