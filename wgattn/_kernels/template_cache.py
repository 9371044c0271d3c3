"""Templates as Jinja2 compiled them, kept over processes: what Python's .pyc files are to modules.

Reading templates is most of what Python does at the first call of a kernel. Nothing depends on the cache: where a file
is missing, damaged or of another version, its template is compiled again, and where none can be written, none is.
"""

import hashlib
import os
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

DIGEST = hashlib.sha256().digest_size


class TemplateCache(jinja2.BytecodeCache):
    """A file for each template, below the user's cache folder. `settings` tell how the environment compiles."""

    def __init__(self, settings: str) -> None:
        self._settings = settings.encode()

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            content = self._file(bucket).read_bytes()
            digest, code = content[:DIGEST], content[DIGEST:]
            if digest == self._digest(code):  # Python may crash on code that is damaged
                bucket.bytecode_from_string(code)  # taken if it is of this Jinja2, this Python and the template's text

    def dump_bytecode(self, bucket: Bucket) -> None:
        code, file = bucket.bytecode_to_string(), self._file(bucket)
        written = file.with_name(f"{file.name}.{os.getpid()}")
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written.write_bytes(self._digest(code) + code)
            written.replace(file)  # at once: another process reads the old file or the new one

    def _file(self, bucket: Bucket) -> Path:
        return self._folder / bucket.key

    @cached_property
    def _folder(self) -> Path:
        from platformdirs import user_cache_path

        return user_cache_path("wgattn", appauthor=False) / "templates" / str(sys.implementation.cache_tag)

    def _digest(self, code: bytes) -> bytes:
        return hashlib.sha256(self._settings + code).digest()
