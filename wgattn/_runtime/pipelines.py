"""Compiled shaders: the pipelines of the Shaders used last, and their bind group layouts."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._errors import UnsupportedError, WgattnError
from .program import Resource, Shader

if TYPE_CHECKING:
    from .device import Device

# the names that a shader may ask for, in either library's spelling
FEATURE_FIELDS = {
    "shader-f16": "f16",
    "f16": "f16",
    "subgroup": "subgroups",
    "subgroups": "subgroups",
    "chromium-experimental-subgroup-matrix": "matrix",
    "matrix": "matrix",
}


KEPT = 256  # pipelines that nobody may need any more: a driver holds some 3 MB for each on a CPU adapter


class Pipelines:
    """The cache of one device. Call it with the device's lock held. Programs hold the pipelines that they use."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._layouts: dict[tuple[Resource, ...], tuple[Any, Any]] = {}
        self._pipelines: OrderedDict[Shader, Any] = OrderedDict()

    def pipelines(self, shaders: Sequence[Shader]) -> list[Any]:
        """The compiled pipelines; new ones are compiled side by side, where the library can.

        Raises UnsupportedError for a feature that is not there, WgattnError for bad code.
        """
        wanted = dict.fromkeys(shaders)
        new = [shader for shader in wanted if shader not in self._pipelines]
        for shader in new:
            self._layout(shader.resources)
        self._pipelines.update(zip(new, self._made(new), strict=True))
        for shader in wanted:
            self._pipelines.move_to_end(shader)
        found = [self._pipelines[shader] for shader in shaders]
        while len(self._pipelines) > KEPT:
            self._pipelines.popitem(last=False)
        return found

    def layout(self, resources: tuple[Resource, ...]) -> Any:
        """The bind group layout: the resources, then the uniform buffer with the parameters."""
        return self._layout(resources)[0]

    def _made(self, shaders: list[Shader]) -> list[Any]:
        if len(shaders) < 2 or not self._device.provider.compiles_in_threads:
            return [self._make(shader) for shader in shaders]
        with ThreadPoolExecutor(len(shaders)) as pool:
            try:
                made = pool.map(self._make, shaders)
            except RuntimeError:  # the main thread has ended, and nothing more is started
                made = map(self._make, shaders)
            return list(made)

    def _make(self, shader: Shader) -> Any:
        device, profile = self._device, self._device.profile
        for feature in sorted(shader.features):
            if not getattr(profile, FEATURE_FIELDS.get(feature, ""), False):
                raise UnsupportedError(
                    f"shader {shader.name} needs {feature}, which {profile.name} ({profile.provider}) does not have: "
                    "leave implementation unset to have a kernel chosen that runs here"
                )
        try:
            module = device.provider.shader_module(device.native, shader.source, shader.name)
            return device.native.create_compute_pipeline(
                label=shader.name,
                layout=self._layout(shader.resources)[1],
                compute={"module": module},
            )
        except Exception as error:
            device.check_alive()
            raise WgattnError(
                f"shader {shader.name} did not compile on {profile.name} ({profile.provider}): {error}"
            ) from error

    def _layout(self, resources: tuple[Resource, ...]) -> tuple[Any, Any]:
        found = self._layouts.get(resources)
        if found is None:
            native = self._device.native
            stage = self._device.provider.module.ShaderStage.COMPUTE
            entries: list[dict[str, Any]] = [
                {"binding": i, "visibility": stage, **_entry(resource)} for i, resource in enumerate(resources)
            ]
            entries.append({"binding": len(resources), "visibility": stage, "buffer": {"type": "uniform"}})
            layout = native.create_bind_group_layout(entries=entries)
            found = self._layouts[resources] = layout, native.create_pipeline_layout(bind_group_layouts=[layout])
        return found


def _entry(resource: Resource) -> dict[str, Any]:
    if resource == "read":
        return {"buffer": {"type": "read-only-storage"}}
    if resource == "write":
        return {"buffer": {"type": "storage"}}
    way, texel = resource.split(" ")
    return {"storage_texture": {"access": f"{way}-only", "format": texel, "view_dimension": "2d"}}
