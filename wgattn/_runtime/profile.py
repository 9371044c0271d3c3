"""What is known of a device, as a value: all that the choice of a shader may depend on."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Tuned = tuple[tuple[str, int], ...]  # constants of kernels by name, as `wgattn tune` found them


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits a device was made with. The defaults are WebGPU's own, which every device has."""

    storage_buffers: int = 8
    workgroup_bytes: int = 16384
    invocations: int = 256
    workgroups_per_dimension: int = 65535
    binding_bytes: int = 128 << 20
    buffer_bytes: int = 256 << 20
    texture_2d: int = 8192
    storage_textures: int = 4
    offset_alignment: int = 256
    loop_turns: int | None = None  # Mesa before 25 ends all loops of an invocation after 65,535 turns, silently


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device as the kernels see it. Made by the runtime from a live adapter, or from another machine's JSON."""

    name: str = "WebGPU minimum"
    provider: Literal["wgpu", "dawn"] = "wgpu"
    backend: str = "Vulkan"
    kind: Literal["discrete", "integrated", "cpu", "unknown"] = "unknown"
    driver: str = ""
    subgroup_size: int | None = None  # measured and constant on CPU adapters; None: read in the shader, or not used
    subgroup_least: int = 0  # lanes that every subgroup has at least, as the adapter says; 0: it does not
    subgroup_most: int = 0  # lanes that every subgroup has at most; 0: not known
    subgroups: bool = False
    f16: bool = False
    timestamps: bool = False
    multiply_adds: float = 0.0  # operations a second of a GPU, when it was made; 0: not measured
    matrix: tuple[str, ...] = ()  # subgroup matrix configurations, e.g. "f16-f32-16x16x16"
    limits: Limits = field(default_factory=Limits)
    tuned: Tuned = ()  # in place of the built-in rules' own

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def team(self) -> int:
        """The lanes that are sure to share a subgroup, 0 where shaders may not use subgroups."""
        return (self.subgroup_size or self.subgroup_least) if self.subgroups else 0

    def constant(self, name: str, otherwise: int = -1) -> int:
        """The tuned constant of that name; `otherwise` where the built-in rule serves."""
        return dict(self.tuned).get(name, otherwise)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "DeviceProfile":
        """The profile that `to_json` wrote. Unknown fields raise, so that a stale report is not half read."""
        known = {f.name for f in fields(cls)}
        if extra := set(given) - known:
            raise ValueError(
                f"a device profile has no field {', '.join(sorted(extra))}: it was written by another version"
            )
        values = dict(given)
        values["limits"] = Limits(**given.get("limits", {}))
        values["matrix"] = tuple(given.get("matrix", ()))
        values["tuned"] = tuple((k, v) for k, v in given.get("tuned", ()))
        return cls(**values)
