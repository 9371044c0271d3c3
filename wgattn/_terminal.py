"""How wide a text may be where it is shown."""

import os
import shutil
import sys


def columns(otherwise: int) -> int:
    """The width of the terminal that stdout is; elsewhere what COLUMNS says, or `otherwise`."""
    if sys.stdout is not None and sys.stdout.isatty():
        return shutil.get_terminal_size((otherwise, 24)).columns
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else otherwise
