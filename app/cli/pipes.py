"""What a command line does when the program that reads its output has gone."""

import os
import sys


def hush_stdout() -> None:
    """Send what is still buffered nowhere, so that it cannot complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
