"""What --completion-bash prints: a script that completes flags, and file names after them."""

from collections.abc import Iterable
from typing import Final

from app.cli.flags.option import Option

_SCRIPT: Final = """\
_llama_serve() {{
    if [[ $2 == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "{flags}" -- "$2")
    fi
}}
complete -o bashdefault -o default -F _llama_serve {program}
"""


def completion_script(program: str, options: Iterable[Option]) -> str:
    """Return the script for a program with these flags; bash reads it with `source`."""
    flags = (name for option in options for name in (*option.names, *option.off_names))
    return _SCRIPT.format(flags=" ".join(flags), program=program)
