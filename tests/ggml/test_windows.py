"""Windows on a dimension, against a list of every place of every window."""

from hypothesis import given
from hypothesis import strategies as st

from app.ggml.windows import Windows


@given(
    size=st.integers(0, 12),
    width=st.integers(1, 6),
    stride=st.integers(1, 5),
    pad=st.integers(0, 7),
    dilation=st.integers(1, 4),
)
def test_as_many_windows_as_fit(
    size: int, width: int, stride: int, pad: int, dilation: int
) -> None:
    last = dilation * (width - 1)
    fitting = [at for at in range(-pad, size + pad, stride) if at + last < size + pad]
    lacking = last - (size + 2 * pad - 1)
    n = 1 if 0 < lacking < stride else len(fitting)
    assert Windows.over(size, width, stride, pad, dilation).n == n


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    return Windows(
        size=draw(st.integers(0, 12)),
        width=draw(st.integers(1, 6)),
        stride=draw(st.integers(1, 5)),
        start=draw(st.integers(-9, 9)),
        dilation=draw(st.integers(1, 4)),
        n=draw(st.integers(1, 6)),
    )


def _pairs(some: Windows) -> set[tuple[int, int, int]]:
    """Place, window and element wherever a place of a window is inside."""
    return {
        (k, i, some.start + i * some.stride + k * some.dilation)
        for k in range(some.width)
        for i in range(some.n)
        if 0 <= some.start + i * some.stride + k * some.dilation < some.size
    }


@given(windows())
def test_places_are_all_that_are_inside(some: Windows) -> None:
    found = [
        (k, i, element)
        for k, which, elements in some.places()
        for i, element in zip(range(which.start, which.stop), range(12)[elements], strict=True)
    ]
    assert len(found) == len(set(found))
    assert set(found) == _pairs(some)


@given(windows(), st.integers(0, 4), st.integers(1, 4))
def test_some_windows_are_the_same_windows(some: Windows, first: int, n: int) -> None:
    part = _pairs(some.some(first, n))
    assert part == {
        (k, i - first, element)
        for k, i, element in _pairs(Windows(**{**_fields(some), "n": first + n}))
        if i >= first
    }


def _fields(some: Windows) -> dict[str, int]:
    return {name: getattr(some, name) for name in some.__slots__}


def test_windows_far_outside_cost_nothing() -> None:
    wide = Windows(size=4, width=1 << 30, stride=1, start=-(1 << 29), dilation=1, n=2)
    assert len(list(wide.places())) == 5
