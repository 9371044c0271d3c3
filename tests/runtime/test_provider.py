"""Which adapter is taken, what is asked of it, and what is said where there is none."""

import pytest

from wgattn._errors import AdapterNotFoundError, UnsupportedError
from wgattn._runtime import AdapterInfo, DeviceProfile, Limits, wgsl_root
from wgattn._runtime.advice import install_advice
from wgattn._runtime.device import LIMIT_NAMES, SIDES, as_bytes, loop_turns, requested_limits
from wgattn._runtime.memory import size_class
from wgattn._runtime.provider import pick

LAVAPIPE = AdapterInfo(0, "llvmpipe (LLVM 15)", "cpu", "Vulkan", "Mesa 22.3.6 (LLVM 15.0.6)")
INTEGRATED = AdapterInfo(1, "Intel Arc", "integrated", "Vulkan", "Mesa 25.0")
DISCRETE = AdapterInfo(2, "NVIDIA H200", "discrete", "Vulkan", "570.1")


@pytest.mark.parametrize(
    ("adapters", "chosen", "expected"),
    [
        ((LAVAPIPE, INTEGRATED, DISCRETE), None, DISCRETE),
        ((LAVAPIPE, INTEGRATED), None, INTEGRATED),
        ((LAVAPIPE,), None, LAVAPIPE),
        ((LAVAPIPE, INTEGRATED, DISCRETE), 0, LAVAPIPE),
        ((LAVAPIPE, INTEGRATED, DISCRETE), "1", INTEGRATED),
        ((LAVAPIPE, INTEGRATED, DISCRETE), "h200", DISCRETE),
        ((LAVAPIPE, INTEGRATED, DISCRETE), "LLVMpipe", LAVAPIPE),
    ],
)
def test_pick(adapters, chosen, expected):
    assert pick(adapters, chosen) == expected


def test_pick_lists_what_there_is():
    with pytest.raises(AdapterNotFoundError, match=r"'radeon'.*0: llvmpipe.*2: NVIDIA H200 \(discrete, Vulkan\)"):
        pick((LAVAPIPE, DISCRETE), "radeon")
    with pytest.raises(AdapterNotFoundError, match="no WebGPU adapter was found"):
        pick((), None)
    with pytest.raises(AdapterNotFoundError, match="dawn takes fewer than WGATTN_PROVIDER=wgpu does: try that"):
        pick((), None, "dawn")


@pytest.mark.parametrize(
    ("platform", "release", "text"),
    [
        ("linux", "ID=debian\n", "sudo apt-get install mesa-vulkan-drivers libvulkan1"),
        ("linux", 'ID=pop\nID_LIKE="ubuntu debian"\n', "sudo apt-get install mesa-vulkan-drivers libvulkan1"),
        ("linux", "ID=fedora\n", "sudo dnf install mesa-vulkan-drivers vulkan-loader"),
        ("linux", 'ID="rocky"\nID_LIKE="rhel centos fedora"\n', "sudo dnf install mesa-vulkan-drivers vulkan-loader"),
        ("linux", "ID=arch\n", "sudo pacman -S vulkan-swrast vulkan-icd-loader"),
        ("darwin", "", "macOS"),
        ("win32", "", "driver"),
    ],
)
def test_install_advice(platform, release, text):
    assert text in install_advice(platform, release)


@pytest.mark.parametrize(
    ("name", "driver", "turns"),
    [
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "Mesa 22.3.6 (LLVM 15.0.6)", 65535),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", None),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe: Mesa 24.9.1 (LLVM 15.0.6) 0.0.1", 65535),
        ("llvmpipe", "", 65535),
        ("AMD Radeon RX 6800 (RADV)", "Mesa 22.3.6", None),
        ("NVIDIA H200", "570.1", None),
    ],
)
def test_loop_turns(name, driver, turns):
    assert loop_turns(name, driver) == turns


ADAPTER = dict.fromkeys([*LIMIT_NAMES.values(), *SIDES], 1 << 20)


def test_every_limit_is_asked_for_by_name():
    asked = requested_limits(ADAPTER, None)
    assert asked.keys() == ADAPTER.keys()
    assert asked["max-storage-buffers-per-shader-stage"] == 10
    assert requested_limits(dict.fromkeys(ADAPTER, 8), None)["max-storage-buffers-per-shader-stage"] == 8
    assert asked["max-buffer-size"] == 1 << 20


def test_a_limit_override_is_asked_for_and_never_beyond_the_adapter():
    big = dict.fromkeys(ADAPTER, 1 << 40)
    asked = requested_limits(big, Limits())
    assert asked["max-compute-workgroup-storage-size"] == 16384
    assert asked["max-compute-workgroup-size-x"] == 256
    with pytest.raises(UnsupportedError, match="max-buffer-size 268435456; the adapter has 1048576"):
        requested_limits(ADAPTER | dict.fromkeys(list(LIMIT_NAMES.values())[:5], 1 << 40), Limits())


@pytest.mark.parametrize("nbytes", [0, 1, 256, 257, 1000, 4096, 4097, 123_456_789, 1 << 30, (1 << 30) + 4])
def test_size_classes(nbytes):
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % 256 == 0
    assert size <= max(nbytes * 9 / 8, nbytes + 256)
    assert size_class(size) == size


def test_bytes_are_padded_to_words():
    assert as_bytes(b"abcde").tobytes() == b"abcde\0\0\0"
    assert as_bytes(b"").nbytes == 0


def test_a_profile_goes_through_json():
    profile = DeviceProfile(name="x", kind="cpu", subgroup_size=8, limits=Limits(loop_turns=65535), matrix=("a",))
    assert DeviceProfile.from_json(profile.to_json()) == profile


def test_the_shaders_are_found():
    assert (wgsl_root() / "runtime" / "self_test.wgsl").is_file()
