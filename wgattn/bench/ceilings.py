"""What the device can do at most, measured with the same means as the kernels: WGSL, one submit, the same clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wgattn import _runtime
from wgattn._errors import WgattnError
from wgattn._kernels.compose import compose
from wgattn._kernels.kernel import Binding, Parameters, Variant, fold_workgroups
from wgattn._kernels.matrices import LANES, is_emulated, matrix_features, supports_matrices
from wgattn._runtime import BufferSlot, Dispatch, Program, Range, Shader, TextureSlot, wgsl_root
from wgattn._runtime.speed import products
from wgattn.bench.timing import SAMPLE, Sampler, by_wall, medians

GPU_SAMPLE = 0.02  # seconds that a GPU works on one submit: a short one after a pause measures an idle clock
TURNS = 512  # of the loop of products
READ_BLOCK = 256 * 16 * 16  # bytes that a workgroup of read.wgsl reads
TEXTURE = 2048  # texels a side


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Most operations a second, by the units that do them, and most bytes a second that a kernel reads."""

    fma: float
    reads: float
    matrix: float | None = None  # of the subgroup matrices that attention multiplies: f16 in, f32 sums
    texture_reads: float | None = None  # measured on CPU adapters, where textures are the faster way
    failed: str = ""  # why the matrix units that there are were not measured

    @property
    def bytes(self) -> float:
        """The most bytes a second that a kernel reads, whichever way is the faster."""
        return max(self.reads, self.texture_reads or 0.0)

    def operations(self, variant: str) -> float:
        """The most operations a second that a kernel of this name can do."""
        return self.matrix if self.matrix is not None and "matrix" in variant else self.fma


@dataclass(frozen=True, slots=True)
class Probe:
    """A program that does `work` (operations or bytes) and nothing else that takes time."""

    program: Program
    work: float
    inputs: tuple[_runtime.Buffer, ...] = ()


def ceilings(profile: _runtime.DeviceProfile, rounds: int = 5, warm_up: float = 0.3) -> Ceilings:
    """Measure them; some two seconds."""

    def rate(probe: Probe) -> float:
        sampler = repeated(probe.program, profile, lambda: probe.inputs)
        return probe.work / medians({"": sampler}, rounds, warm_up, sample=sample_seconds(profile))[""]

    threads = 1 << (14 if profile.is_cpu else 20)
    nbytes = 64 << 20 if profile.is_cpu else min(512 << 20, profile.limits.binding_bytes)
    matrix, why = None, ""
    if supports_matrices(profile):
        try:
            matrix = rate(matrix_products(profile))
        except WgattnError as error:  # the rows can be measured without
            why = str(error)
    textures = profile.is_cpu and profile.limits.texture_2d >= TEXTURE
    return Ceilings(
        fma=max(rate(Probe(*products(threads, TURNS, fused))) for fused in (True, False)),
        reads=rate(_reads(nbytes // READ_BLOCK)),
        matrix=matrix,
        texture_reads=rate(_texture_reads()) if textures else None,
        failed=why,
    )


def sample_seconds(profile: _runtime.DeviceProfile) -> float:
    """How long a sample of calls should last on the device."""
    return SAMPLE if profile.is_cpu else GPU_SAMPLE


def repeated(
    program: Program, profile: _runtime.DeviceProfile, inputs: Callable[[], Sequence[_runtime.Buffer]]
) -> Sampler:
    """Times of a program by the device's clock on a GPU that has one, all calls in one submit; else by the host's."""
    made: dict[int, _runtime.Executable] = {}

    def executable(count: int) -> _runtime.Executable:
        if count not in made:
            made[count] = _runtime.prepare(replace(program, commands=program.commands * count))
        return made[count]

    def by_device(count: int) -> float:
        seconds = executable(count).gpu_seconds(inputs(), 1)
        assert seconds is not None, "the profile says that there are timestamps"
        return seconds

    def call() -> None:
        executable(1).run(inputs())
        _runtime.wait()

    return by_wall(call) if profile.is_cpu or not profile.timestamps else by_device


def matrix_products(profile: _runtime.DeviceProfile, workgroups: int = 2048, turns: int = 512) -> Probe:
    """Products of 16 x 16 matrices in registers, of which a subgroup keeps eight sums."""
    emulated = is_emulated(profile)
    subgroups = 2 if emulated else 8
    constants = ("WORKGROUP", subgroups * LANES), ("SUBGROUPS", subgroups), ("EMULATED", emulated)
    variant = Variant(
        "bench",
        "bench_matrix",
        "bench/matrix.wgsl",
        constants,
        (Binding("found", "write", "vec4f"),),
        Parameters((("turns", "u32"),)),
        features=matrix_features(profile),
    )
    shader = Shader(variant.name, compose(variant, profile.provider), ("write",), variant.features)
    nbytes = workgroups * subgroups * LANES * 16
    dispatch = Dispatch(shader, (Range(0, 0, nbytes),), variant.parameters.pack(turns=turns), (workgroups, 1, 1))
    work = 2.0 * 16**3 * 8 * turns * subgroups * workgroups
    return Probe(Program((BufferSlot(nbytes),), (), (0,), (dispatch,)), work)


def _reads(workgroups: int) -> Probe:
    nbytes = workgroups * READ_BLOCK
    given = _runtime.upload(np.random.default_rng(0).integers(0, 1 << 63, nbytes // 8))
    grid = fold_workgroups(workgroups)
    slots = BufferSlot(nbytes), BufferSlot(grid[0] * grid[1] * 4)
    ranges = Range(0, 0, nbytes), Range(1, 0, slots[1].nbytes)
    dispatch = Dispatch(_shader("read", "read", "write"), ranges, np.uint32(nbytes // 16).tobytes(), grid)
    return Probe(Program(slots, (0,), (1,), (dispatch,)), float(nbytes), (given,))


def _texture_reads() -> Probe:
    shader = _shader("read_texture", "read rgba32float", "write")
    grid = (TEXTURE // 64, TEXTURE // 16, 1)
    dispatch = Dispatch(shader, (0, Range(1, 0, 256)), np.uint32(TEXTURE).tobytes(), grid)
    slots = TextureSlot(TEXTURE, TEXTURE, "rgba32float"), BufferSlot(256)
    return Probe(Program(slots, (), (1,), (dispatch,)), float(TEXTURE * TEXTURE * 16))


def _shader(name: str, *resources: _runtime.Resource) -> Shader:
    text = (wgsl_root() / "bench" / f"{name}.wgsl").read_text(encoding="utf-8")
    return Shader(f"bench_{name}", text, resources)
