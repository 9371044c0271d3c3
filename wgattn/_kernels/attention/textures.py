"""Query, key and value of a call as textures: what each box is filled with, and where its rows lie for the shader."""

from collections.abc import Mapping
from dataclasses import dataclass

from wgattn._kernels.attention.boxes import Box, binds, cut
from wgattn._kernels.attention.inputs import Rows, texel_dtype
from wgattn._kernels.attention.problem import AttentionProblem, Call
from wgattn._kernels.kernel import CopyToTexture, Launch, Operand, Scalar, Scratch, Texture
from wgattn._kernels.texture import Rotation, Texels, fields, fill, lay
from wgattn._runtime.profile import Limits


@dataclass(frozen=True, slots=True)
class Filled:
    """The steps that fill a box's textures, and what the launch that reads them is given."""

    steps: tuple[Launch | CopyToTexture, ...]
    resources: Mapping[str, str]
    values: Mapping[str, float]
    scratch: Mapping[str, Texture]


@dataclass(frozen=True, slots=True)
class Textures:
    """The operands `names` of one call, as textures."""

    names: tuple[str, ...]
    problem: AttentionProblem
    call: Call
    operands: Mapping[str, Operand]
    limits: Limits

    def texels(self, name: str, part: Operand) -> Texels:
        dim = self.problem.value_dim if name == "value" else self.problem.head_dim
        rotated = self.problem.rope is not None and name != "value"
        return lay(part, texel_dtype(self.problem, name), dim, rotated)

    def fits(self, name: str, part: Operand) -> bool:
        """Whether the kernel can read this part of an operand: in a texture, or in a binding."""
        if name in self.names:
            return self.texels(name, part).fits(self.limits)
        return binds(part, self.limits)

    def fill(self, box: Box, rows: Rows, known: Mapping[str, Scratch | Texture]) -> Filled:
        """A box's textures. Boxes are worked on in turn, so they share them: those in `known` grow as they need."""
        group = self.operands["query"].shape[3] // self.operands["key"].shape[3]
        steps: list[Launch | CopyToTexture] = []
        resources, values, scratch = {}, {}, {}
        for name in self.names:
            part = cut(name, self.operands[name], box, group)
            texels = self.texels(name, part)
            resources[name] = texture = f"{name}_texels"
            steps += fill(part, name, texels, texture, self.limits, self._rotation(name, box, rows))
            values |= texels.values(name)
            made, before = texels.texture, known.get(texture)
            if isinstance(before, Texture):
                made = Texture(max(made.width, before.width), max(made.height, before.height), made.format)
            scratch[texture] = made
        return Filled(tuple(steps), resources, values, scratch)

    def _rotation(self, name: str, box: Box, rows: Rows) -> Rotation | None:
        rope, style = self.call.rope, self.problem.rope
        if rope is None or style is None or name == "value":
            return None
        pairs = rope.rotated(self.operands["query"].shape[4]) // 2
        if name == "key":
            return Rotation(style, pairs, box.s[0])
        if not self.problem.query_offset or rows.resource is None:
            return Rotation(style, pairs, box.t[0])
        at, step = rows.places["query_offset"]
        step_b0 = step * self.operands["query"].shape[1]
        first = at + box.b0[0] * step_b0 + box.b1[0] * step
        return Rotation(style, pairs, box.t[0], (rows.resource, first, step_b0, step))


def texture_fields(names: tuple[str, ...]) -> tuple[tuple[str, Scalar], ...]:
    """The parameters that say where rows lie in the textures of `names`."""
    return tuple(field for name in names for field in fields(name))
