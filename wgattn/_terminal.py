"""The width at which text is printed."""

import os
import shutil
import sys


def columns(otherwise: int) -> int:
    """The width of the terminal if stdout is one, else the value of COLUMNS, else `otherwise`."""
    if sys.stdout is not None and sys.stdout.isatty():
        return shutil.get_terminal_size((otherwise, 24)).columns
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else otherwise
