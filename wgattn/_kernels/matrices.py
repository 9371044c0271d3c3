"""Matrix units as kernels see them: which configuration is used, what a shader needs for it, and why it cannot be."""

from wgattn._kernels.kernel import SUPPORTED, Support, unsupported
from wgattn._runtime.profile import DeviceProfile

CONFIGURATION = "f16-f32-16x16x16"  # float16 in, float32 sums; M x N x K
EIGHT_COLUMNS = "f16-f32-16x8x16"  # right matrices and sums of eight columns
EMULATED = f"emulated-{CONFIGURATION}"  # plain WGSL of the same meaning, for tests on devices without matrix units
LANES = 32


def supports_matrices(profile: DeviceProfile, configuration: str = CONFIGURATION) -> Support:
    """Whether kernels on matrix units run on a device: 32 lanes hold a matrix together."""
    if is_emulated(profile):
        return SUPPORTED
    if not profile.matrix:
        return unsupported("no matrix units here; WGATTN_PROVIDER=dawn may have them")
    if configuration not in profile.matrix:
        return unsupported(f"the device's matrix units multiply {', '.join(profile.matrix)}, not {configuration}")
    if not (profile.f16 and profile.subgroups):
        return unsupported("the device has matrices, but not shader-f16 and subgroups beside")
    if not profile.subgroup_least == profile.subgroup_most == LANES:
        return unsupported(
            f"subgroups have {profile.subgroup_least} to {profile.subgroup_most} lanes; its matrices need {LANES}"
        )
    return SUPPORTED


def is_emulated(profile: DeviceProfile) -> bool:
    return EMULATED in profile.matrix


def matrix_features(profile: DeviceProfile) -> frozenset[str]:
    """What a variant that uses wgsl/shared/matrices.wgsl asks of the device; its constant EMULATED is is_emulated()."""
    return frozenset() if is_emulated(profile) else frozenset({"shader-f16", "subgroup", "matrix"})
