"""Random choices that hurt: numbers at the edges of every width, and damage to bytes."""

import random
from typing import Final

U32: Final = (0, 1, 2, 3, 4, 7, 31, 32, 64, 255, 256, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1)
U64: Final = (*U32, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1)
INDICES: Final = (-1, -2, 7, 8, 255, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1)
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-38, 1e-45, 1e38, float("inf"), -float("inf"))


class Dice(random.Random):
    """A seeded source of hurtful choices."""

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random() < probability

    def u32(self) -> int:
        """Return a number of 32 bits."""
        return self.choice(U32) if self.chance(0.8) else self.getrandbits(32)

    def u64(self) -> int:
        """Return a number of 64 bits."""
        return self.choice(U64) if self.chance(0.8) else self.getrandbits(64)

    def size(self, whole: int) -> int:
        """Return a size or an offset: mostly one that may fit into `whole`, else anything."""
        near = (0, 1, 4, whole // 2, max(whole - 1, 0), whole, whole + 1)
        return self.choice(near) if self.chance(0.8) else self.u64()

    def damaged(self, data: bytes) -> bytes:
        """Return bytes with up to four of them changed, now and then cut short."""
        out = bytearray(data)
        for _ in range(self.randint(0, 4) if out else 0):
            at = self.choice((self.randrange(len(out)), self.randrange(min(len(out), 40))))
            out[at] = self.choice((0, 1, 255, self.randrange(256)))
        if out and self.chance(0.2):
            del out[self.randrange(len(out)) :]
        return bytes(out)
