"""The one device of the process: chosen and made at first use, made anew after a loss, not shared with a fork."""

import os
import threading
from dataclasses import fields
from typing import Any, Literal

from .._errors import UnsupportedError, WgattnError
from . import provider as providers
from .device import FORKED, MINIMUM, Device, ProfileOverride
from .profile import DeviceProfile, Limits
from .provider import AdapterInfo

_lock = threading.Lock()
_current: Device | None = None
_made = 0  # devices so far: the generation of the next
_chosen: str | int | None = None
_override: ProfileOverride | None = None
_forked = False


def device() -> Device:
    """The device of this process, made at the first call and again at the first call after a loss.

    Raises AdapterNotFoundError, UnsupportedError (it fails the self-test), WgattnError (in a forked child).
    """
    global _current, _made
    found = _current
    if found is not None and not _forked and not found.is_lost():
        return found
    check_not_forked()
    with _lock:
        if _current is None or _current.is_lost():
            library = providers.provider()
            info = providers.pick(list_adapters(), _wanted(), library.name)
            _current = Device(library, info, _wanted_override(), _made)
            _made += 1
        return _current


def current_profile() -> DeviceProfile:
    """The profile of the device; makes the device where there is none yet."""
    return device().profile


def list_adapters() -> tuple[AdapterInfo, ...]:
    """The adapters of this machine, without making a device. Empty where there is no driver."""
    check_not_forked()
    return tuple(providers.describe(i, a) for i, a in enumerate(providers.provider().adapters()))


def choose_adapter(chosen: str | int) -> None:
    """Use the adapter of this index, or with this text in its name, instead of WGATTN_ADAPTER's.

    Raises AdapterNotFoundError for an unknown one, WgattnError once a device was made.
    """
    global _chosen
    with _lock:
        _check_unused("an adapter is chosen")
        providers.pick(list_adapters(), chosen, providers.provider().name)
        _chosen = chosen


def use_profile_override(
    *,
    kind: Literal["discrete", "integrated", "cpu", "unknown"] | None = None,
    limits: Limits | None = None,
    f16: bool | None = None,
    subgroups: bool | None = None,
) -> None:
    """For tests: make the device with these limits and features, and call it this kind, so that a CPU adapter stands in
    for a weak GPU. `f16` and `subgroups` can only be taken away. WGATTN_LIMITS=minimum is
    `limits=Limits(), f16=False, subgroups=False`.

    Raises WgattnError once a device was made.
    """
    global _override
    with _lock:
        _check_unused("the profile is overridden")
        _override = ProfileOverride(kind, limits, f16, subgroups)


def adapter_report() -> dict[str, Any]:
    """The adapters, and the device's profile, features and limits, as plain values: for the command line."""
    made = device()
    return {
        "provider": made.provider.name,
        "library": f"{made.provider.module.__name__} {made.provider.module.__version__}",
        "adapters": [{f.name: getattr(a, f.name) for f in fields(a)} for a in list_adapters()],
        "profile": made.profile.to_json(),
        "features": sorted(made.native.features),
        "limits": dict(made.native.limits),
    }


def _wanted() -> str | int | None:
    return _chosen if _chosen is not None else os.environ.get("WGATTN_ADAPTER") or None


def _wanted_override() -> ProfileOverride:
    if _override is not None:
        return _override
    named = os.environ.get("WGATTN_LIMITS", "")
    if named not in ("", "minimum"):
        raise UnsupportedError(f"WGATTN_LIMITS is {named!r}: it is minimum, or not set")
    return MINIMUM if named else ProfileOverride()


def _check_unused(what: str) -> None:
    if _made:
        raise WgattnError(
            f"{what} before the first use of a device: there is one already; do it first, or in a new process"
        )


def check_not_forked() -> None:
    """Raise WgattnError in a child that was forked from a process with a device."""
    if _forked:
        raise WgattnError(FORKED)


def _after_fork() -> None:
    global _forked, _lock
    _forked = providers.loaded()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
