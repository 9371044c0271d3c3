"""The constants that `wgattn tune` found, in a small JSON file; read once for each device that is made."""

import json
import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .._errors import WgattnError
from .._version import __version__
from .profile import DeviceProfile, Tuned

FORMAT = 1
OFF, ON = ("0", "false", "no"), ("", "1", "true", "yes")


@dataclass(frozen=True, slots=True)
class Entry:
    """What was found for one device with one driver, provider and version of wgattn."""

    device: str
    backend: str
    driver: str
    provider: str
    version: str
    constants: Tuned = ()

    @property
    def is_read(self) -> bool:
        """Whether this version of wgattn takes it: another's shaders are not those that were timed."""
        return self.version == __version__

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "constants": dict(self.constants)}


def path() -> Path | None:
    """The file: in the user's cache folder, or where WGATTN_TUNED says; None where that switches it off."""
    given = os.environ.get("WGATTN_TUNED", "").strip()
    if given.lower() in OFF:
        return None
    if given.lower() not in ON:
        return Path(given)
    from platformdirs import user_cache_path

    return user_cache_path("wgattn", appauthor=False) / "tuned.json"


def entries() -> tuple[Entry, ...]:
    """All that the file holds; nothing where there is none. Raises ValueError for a file of another kind."""
    file = path()
    if file is None:
        return ()
    try:
        return _entries(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{file} holds no tuned constants that can be read ({told}): `wgattn tune --forget` removes it, and "
            "WGATTN_TUNED names another file, or 0 for none"
        ) from error


def constants_for(profile: DeviceProfile) -> Tuned:
    """The constants of this device. Warns, and gives none, where the file cannot be read: calls are right without."""
    try:
        found = entries()
    except ValueError as error:
        warnings.warn(f"{error}. The built-in rules serve meanwhile", stacklevel=2)
        return ()
    key = key_of(profile)
    return next((entry.constants for entry in found if replace(entry, constants=()) == key), ())


def check_writable() -> None:
    """Raise before a search whose winners could not be kept: ValueError for a file of another kind, WgattnError where
    the file is switched off or its folder cannot be written to."""
    file = path()
    if file is None:
        raise WgattnError("WGATTN_TUNED switches tuned constants off: unset it, or give the path of a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(file.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise WgattnError(f"{file.parent} cannot be written to: give the path of another file in WGATTN_TUNED")
    entries()


def keep(profile: DeviceProfile, found: Mapping[str, int], tried: Collection[str]) -> Path:
    """Write what was found for this device over what the file has of the constants that were `tried`.

    Raises what `check_writable` does, OSError.
    """
    check_writable()
    file = path()
    assert file is not None, "it was checked"
    key, known = key_of(profile), entries()
    old = next((entry.constants for entry in known if replace(entry, constants=()) == key), ())
    constants = {name: value for name, value in old if name not in tried} | dict(found)
    kept = [entry for entry in known if replace(entry, constants=()) != key]
    if constants:
        kept.append(replace(key, constants=tuple(sorted(constants.items()))))
    written = file.with_name(f"{file.name}.{os.getpid()}")
    written.write_text(
        json.dumps({"format": FORMAT, "entries": [entry.as_json() for entry in kept]}, indent=2) + "\n",
        encoding="utf-8",
    )
    written.replace(file)  # at once: a process that starts meanwhile reads the old file or the new one
    return file


def forget() -> Path | None:
    """Remove the file; its path, or None where there was none. Raises OSError."""
    file = path()
    if file is None or not file.exists():
        return None
    file.unlink()
    return file


def key_of(profile: DeviceProfile) -> Entry:
    """The entry of a device, without constants."""
    return Entry(profile.name, profile.backend, profile.driver, profile.provider, __version__)


def _entries(content: Any) -> tuple[Entry, ...]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    names = {field.name for field in fields(Entry)}
    made = []
    for given in content["entries"]:
        constants = given["constants"]
        whole = all(isinstance(value, int) and not isinstance(value, bool) for value in constants.values())
        texts = all(isinstance(given[name], str) for name in names - {"constants"})
        if set(given) != names or not whole or not texts:
            raise ValueError(f"entry {len(made)} is broken")
        made.append(Entry(**{**given, "constants": tuple(constants.items())}))
    return tuple(made)
