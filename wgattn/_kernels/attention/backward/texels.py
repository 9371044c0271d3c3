"""What the sweeps read from textures: the parts of query, key, value and grad_out that a launch needs, filled once."""

from dataclasses import dataclass, field, replace

import numpy as np

from wgattn._kernels.attention.backward.work import Work
from wgattn._kernels.attention.boxes import Box, cut
from wgattn._kernels.attention.problem import AttentionProblem
from wgattn._kernels.attention.textures import Filled, dense_texels, dense_values, rows_of
from wgattn._kernels.kernel import CopyToTexture, Launch, Operand, Scratch, Texture
from wgattn._kernels.texture import Texels, lay
from wgattn._kernels.texture_fill import fill
from wgattn._runtime.profile import Limits

NAMES = ("query", "key", "value", "grad_out")


def texel_dtype(sweep: AttentionProblem, name: str) -> np.dtype:
    """What a texel of an operand's texture holds: the sweeps see rotated rows, so their own dtype."""
    dtypes = {
        "query": sweep.query_dtype,
        "key": sweep.key_dtype,
        "value": sweep.value_dtype,
        "grad_out": sweep.out_dtype,
    }
    return dtypes[name]


def texels(sweep: AttentionProblem, name: str, part: Operand) -> Texels:
    dim = sweep.head_dim if name in ("query", "key") else sweep.value_dim
    return lay(part, texel_dtype(sweep, name), dim)


def fits(sweep: AttentionProblem, name: str, part: Operand, limits: Limits) -> bool:
    """Whether a texture is wide enough for a part of an operand, however its rows get there."""
    laid = texels(sweep, name, part)
    return laid.fits(limits) and replace(laid, copied=False, side=1, apart=False).fits(limits)


@dataclass(slots=True)
class Textures:
    """The textures of one plan: four, and `dense`. A part that a texture already holds is not brought again."""

    dense: tuple[str, ...] = ()
    held: dict[str, Operand] = field(default_factory=dict)

    def fill(self, work: Work, box: Box, scratch: dict[str, Scratch | Texture]) -> Filled:
        """The steps that bring a box's parts, and what a launch that reads them is given; grows `scratch`."""
        steps: list[Launch | CopyToTexture] = []
        resources, values = {}, {}
        for name in (*NAMES, *self.dense):
            part = cut("out" if name == "grad_out" else name, work.operands[name], box, work.group)
            if name in self.dense:
                lies, part = part, rows_of(name, part)
                laid = dense_texels(part)
                values |= dense_values(name, lies, part, laid)
            else:
                laid = texels(work.problem.sweep, name, part)
                values |= laid.values(name)
            resources[name] = texture = f"{name}_texels"
            if self.held.get(name) != part:
                steps += fill(part, work.source(name), laid, texture, work.limits)
                self.held[name] = part
            made, before = laid.texture, scratch.get(texture)
            if isinstance(before, Texture):
                made = Texture(max(made.width, before.width), max(made.height, before.height), made.format)
            scratch[texture] = made
        return Filled(tuple(steps), resources, values, {})
