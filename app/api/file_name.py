"""Which names a client may give to files: plain ones, that mean the same file everywhere.

The rules are those of fs_validate_filename in llama.cpp's common.cpp (b11434).
"""

import unicodedata
from typing import Final

MAX_BYTES: Final = 255
_FORBIDDEN: Final = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')


def is_file_name(name: str) -> bool:
    """Return whether a name may be used: no path, nothing hidden in it, not too long."""
    if not 0 < len(name.encode("utf-8", "replace")) <= MAX_BYTES:
        return False
    if any(c in _FORBIDDEN or unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return False
    return not name.startswith(" ") and not name.endswith((" ", ".")) and ".." not in name
