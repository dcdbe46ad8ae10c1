"""How windows lie on one dimension of an image: the arithmetic that convolution and pooling share.

Rules on shapes take the number of windows from here, kernels the elements that each place of a
window meets. Padding is never made: what lies in it is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Windows:
    """`n` windows of `width` places each, on `size` elements. Place k of window i is element
    start + i * stride + k * dilation, which may lie outside.
    """

    size: int
    width: int
    stride: int
    start: int
    dilation: int
    n: int

    @classmethod
    def over(cls, size: int, width: int, stride: int, pad: int, dilation: int = 1) -> Self:
        """As many windows as fit into `size` elements with `pad` more at both ends. As in ggml,
        which divides towards zero, one may also lack less than a stride; else there are none.
        """
        room = size + 2 * pad - dilation * (width - 1) - 1
        n = room // stride + 1 if room >= 0 else 1 - (-room // stride)
        return cls(size, width, stride, -pad, dilation, max(0, n))

    def some(self, first: int, n: int) -> Self:
        """`n` of the windows from number `first` on."""
        return replace(self, start=self.start + first * self.stride, n=n)

    def places(self) -> Iterator[tuple[int, slice, slice]]:
        """For each place that is inside in some window: its number, those windows, and the elements
        that they have there.
        """
        span = (self.n - 1) * self.stride
        first = max(0, -((self.start + span) // self.dilation))
        last = min(self.width - 1, (self.size - 1 - self.start) // self.dilation)
        for k in range(first, last + 1):
            at = self.start + k * self.dilation
            low = max(0, -(at // self.stride))
            high = min(self.n, (self.size - 1 - at) // self.stride + 1)
            if low < high:
                begin, end = at + low * self.stride, at + (high - 1) * self.stride + 1
                yield k, slice(low, high), slice(begin, end, self.stride)
