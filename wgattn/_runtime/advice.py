"""What to install on a system: any Vulkan driver where there is no adapter, a GPU's own where it is software."""

import sys
from pathlib import Path

RED_HAT = {"fedora", "rhel", "centos"}


def install_advice(platform: str = sys.platform, release: str | None = None) -> str:
    """What to install so that there is an adapter. `release` is the text of /etc/os-release, read unless given."""
    if platform == "darwin":
        return "macOS 10.15 or later has Metal built in: update macOS, and run outside of a sandbox that hides the GPU"
    if platform == "win32":
        return "Install the GPU maker's current driver (it brings Vulkan and D3D12); Windows 10 or later is needed"
    ids = _distribution(release)
    if ids & RED_HAT:
        command = "sudo dnf install mesa-vulkan-drivers vulkan-loader"
    elif "arch" in ids:
        command = "sudo pacman -S vulkan-swrast vulkan-icd-loader"
    else:
        command = "sudo apt-get install mesa-vulkan-drivers libvulkan1"
    return f"Install a Vulkan driver: {command} (this one runs on any CPU; a GPU's own driver is faster)"


def gpu_driver(platform: str = sys.platform, release: str | None = None) -> str:
    """The driver to install for a GPU, where the adapter in use is software."""
    if platform == "darwin":
        return "run outside a virtual machine: macOS brings Metal, and nothing is to be installed"
    if platform == "win32":
        return "install its maker's current driver, which brings Vulkan and Direct3D 12"
    ids, named = _distribution(release), "its maker's package"
    if "ubuntu" in ids:
        named = "sudo ubuntu-drivers install"
    elif "debian" in ids:
        named = "sudo apt-get install nvidia-driver (component non-free)"
    elif "fedora" in ids:
        named = "sudo dnf install akmod-nvidia (RPM Fusion)"
    return (
        f"NVIDIA: install its driver, {named}; start a container with --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all. "
        "AMD and Intel: Mesa, which serves this adapter, has their drivers; "
        "/dev/dri/render* has to be yours to open, and a container's by --device /dev/dri"
    )


def _distribution(release: str | None) -> set[str]:
    """The names in ID and ID_LIKE of os-release: a distribution's own and those that it descends from."""
    if release is None:
        path = Path("/etc/os-release")
        release = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line.partition("=")[2] for line in release.splitlines() if line.startswith(("ID=", "ID_LIKE="))]
    return {word for line in lines for word in line.replace('"', "").replace("'", "").split()}
