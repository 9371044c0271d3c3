"""The operands of a call that are read from textures: what each box is filled with, where rows lie for the shader."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wgattn._dtypes import float32
from wgattn._kernels.attention.boxes import Box, binds, cut
from wgattn._kernels.attention.inputs import Rows, texel_dtype
from wgattn._kernels.attention.problem import AttentionProblem, Call, key_count
from wgattn._kernels.kernel import CopyToTexture, Launch, Operand, Scalar, Scratch, Texture
from wgattn._kernels.stored import row_elements
from wgattn._kernels.texture import TEXEL, Texels, fields, lay
from wgattn._kernels.texture_fill import Held, Rotation, Row, fill
from wgattn._runtime.profile import Limits

DENSE = ("bias", "mask")
DENSE_BYTES = 32 << 20  # of a bias or a mask at once: more rows or heads are worked on in turn, in the same texture
WHOLE_POOL = 8  # a pool up to so many times the tokens that a call reads is copied whole: a gather takes as much longer


def stored_names(problem: AttentionProblem) -> tuple[str, ...]:
    """What is read of a key from textures."""
    return ("key", "value", "scales") if problem.scales else ("key", "value")


def given_dense(problem: AttentionProblem) -> tuple[str, ...]:
    """Those of bias and mask that the problem has."""
    there = {"bias": problem.bias is not None, "mask": problem.mask}
    return tuple(name for name in DENSE if there[name])


def dense_names(problem: AttentionProblem, limits: Limits) -> tuple[str, ...]:
    """Which of bias and mask are read from textures too: those that lie in rows, as many as the device binds."""
    return dense_beside(problem, limits, 1 + len(stored_names(problem)))


def dense_beside(problem: AttentionProblem, limits: Limits, others: int) -> tuple[str, ...]:
    """The same for a kernel that reads so many `others` from textures."""
    free = max(limits.storage_textures - others, 0)
    return tuple(name for name in given_dense(problem) if name in problem.dense_rows)[:free]


def dense_texels(rows: Operand) -> Texels:
    """The layout of rows of a bias or mask, as `rows_of` gives them."""
    each = TEXEL // rows.itemsize
    return lay(rows, rows.dtype, -(-rows.shape[4] // each) * each)


def alike(part: Operand) -> bool:
    """Whether a bias or mask is the same for all batch entries."""
    return all(size == 1 or step == 0 for size, step in zip(part.shape[:2], part.strides[:2], strict=True))


def dense_values(name: str, part: Operand, rows: Operand, texels: Texels) -> dict[str, int]:
    """What a shader is told of the texture of a bias or mask; `rows` are those of the part, `texels` their layout."""
    heads = rows.shape[1] // (1 if alike(part) else part.shape[1])  # that are batch entries
    beside = {f"{name}_entry_b": 0 if alike(part) else heads, f"{name}_entry_n": int(heads > 1)}
    return texels.values(name) | texels.broadcast(name) | beside


def dense_fits(name: str, part: Operand, limits: Limits) -> bool:
    made = dense_texels(rows_of(name, part))
    return made.fits(limits) and made.nbytes <= DENSE_BYTES


def dense_reason(problem: AttentionProblem, names: tuple[str, ...]) -> str:
    """What `wgattn explain` adds of a bias and a mask that are there, `names` being read from textures."""
    words = []
    for name in given_dense(problem):
        why = "the device binds no more textures" if name in problem.dense_rows else "its keys do not lie side by side"
        words.append(f"{name} from a texture" if name in names else f"{name} from a buffer, slowly: {why}")
    return "".join(f"; {word}" for word in words)


def rows_of(name: str, part: Operand) -> Operand:
    """A part of an operand as rows of texels: the scales of all heads of a token are one row, where they lie so.

    A row of bias or mask is all keys of a query, and there once for what it is broadcast along; heads that lie one
    behind the other are batch entries, which take fewer copies.
    """
    if name in DENSE:
        b0, b1, n, t, s = part.shape
        s_b0, s_b1, s_n, s_t, _ = part.strides
        b0, b1 = (1, 1) if alike(part) else (b0, b1)
        n, t = (1 if s_n == 0 else n), (1 if s_t == 0 else t)
        if n > 1 and (b1 == 1 or s_b1 == n * s_n):
            return replace(part, shape=(b0, b1 * n, t, 1, s), strides=(s_b0, s_n, s_t, 0, 1))
        return replace(part, shape=(b0, b1, t, n, s), strides=(s_b0, s_b1, s_t, s_n, 1))
    *tokens, heads, width = part.shape
    if name != "scales" or (heads > 1 and part.strides[3] != width):
        return part
    return replace(part, shape=(*tokens, 1, heads * width))


def unbuffered(names: tuple[str, ...]) -> tuple[str, ...]:
    """What the shared hooks leave to a kernel that reads `names` from textures."""
    return (*names, "segments")


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
    most_entries: int | None = None  # batch entries whose keys and values one box should have
    held: dict[str, tuple[object, ...]] = field(default_factory=dict)  # what textures hold as boxes are planned in turn

    def fits(self, name: str, part: Operand) -> bool:
        """Whether the kernel can read this part of an operand: in a texture, or in a binding."""
        if name not in self.names:
            return binds(part, self.limits)
        if self.pool(name) is not None:
            return True
        stored, entries = name in stored_names(self.problem), part.shape[0] * part.shape[1]
        many = stored and self.most_entries is not None and entries > self.most_entries
        if name in DENSE:
            return dense_fits(name, part, self.limits)
        return not many and self.texels(name, rows_of(name, part)).fits(self.limits)

    def texels(self, name: str, part: Operand, keys: int | None = None) -> Texels:
        """The layout of a part of an operand; of a pool, of `keys` tokens of each sequence (all, unless given)."""
        dtype, dim = self._element(name, part)
        if self._paged(name):
            b0, b1, _, heads, _ = part.shape
            return Texels(dtype, dim, b0 * b1, key_count(self.call, self.operands) if keys is None else keys, heads)
        return lay(part, dtype, dim, self._rotated(name))

    def pool(self, name: str) -> Texels | None:
        """The layout of a pool of pages that is copied whole and read by its table; None for what is gathered."""
        if not self._paged(name) or self._rotated(name):
            return None
        whole = self._whole(name)
        texels = lay(whole, *self._element(name, whole))
        entries = self.operands["query"].shape[0] * self.operands["query"].shape[1]
        few = whole.shape[2] <= WHOLE_POOL * entries * key_count(self.call, self.operands)
        return texels if texels.copied and few and texels.fits(self.limits) else None

    def key_bytes(self) -> int:
        """Bytes in textures of one key of a batch entry, all heads of it, and of what goes with it."""
        heads = self.operands["key"].shape[3]
        elements = [self._element(name, self.operands[name]) for name in stored_names(self.problem)]
        return heads * sum(dtype.itemsize * dim for dtype, dim in elements)

    def fill(self, box: Box, rows: Rows, known: Mapping[str, Scratch | Texture]) -> Filled:
        """A box's textures. Boxes are worked on in turn, so they share them: those in `known` grow as they need."""
        group = self.operands["query"].shape[3] // self.operands["key"].shape[3]
        steps: list[Launch | CopyToTexture] = []
        resources, values, scratch = {}, {}, {}
        for name in self.names:
            pool = self.pool(name)
            if pool is not None:
                part = self._whole(name)
                resources[name] = texture = f"{name}_pool"
                if texture not in known:
                    steps += fill(part, name, pool, texture, self.limits)
                texels, made = pool, pool.texture
            else:
                lies = cut(name, self.operands[name], box, group, self.problem.paged)
                part = rows_of(name, lies)
                texels = dense_texels(part) if name in DENSE else self.texels(name, part, box.size("s"))
                resources[name] = texture = f"{name}_texels"
                rotation, held = self._rotation(name, box, rows), self._held(name, box, rows, group)
                filled = part, rotation, box.b0, box.b1, box.s
                if self.held.get(name) != filled:  # boxes of other query rows have the same keys
                    steps += fill(part, name, texels, texture, self.limits, rotation, held)
                    self.held[name] = filled
                if name in DENSE:
                    values |= dense_values(name, lies, part, texels)
                made, before = texels.texture, known.get(texture)
                if isinstance(before, Texture):
                    made = Texture(max(made.width, before.width), max(made.height, before.height), made.format)
            if name not in DENSE:
                values |= texels.values(name)
            if name == "scales":
                apart = part.shape[3] > 1
                values["scales_step"] = texels.head_step * texels.each if apart else self.operands[name].shape[4]
            if self._paged(name):
                values[f"{name}_pooled"] = pool is not None
            scratch[texture] = made
        return Filled(tuple(steps), resources, values, scratch)

    def _paged(self, name: str) -> bool:
        return self.problem.paged and name in stored_names(self.problem)

    def _rotated(self, name: str) -> bool:
        return self.problem.rope is not None and name in ("query", "key")

    def _element(self, name: str, part: Operand) -> tuple[np.dtype, int]:
        """What the texels of a part of an operand hold, and how many of it a row."""
        if name == "scales":
            return float32, -(-part.shape[4] // 4) * 4
        dtype = texel_dtype(self.problem, name)
        dim = self.problem.value_dim if name == "value" else self.problem.head_dim
        return dtype, row_elements(dtype, dim)

    def _whole(self, name: str) -> Operand:
        """A pool by itself: it is the same for every batch entry."""
        pool = self.operands[name]
        return rows_of(name, replace(pool, shape=(1, 1, *pool.shape[2:])))

    def _row(self, name: str, box: Box, rows: Rows) -> Row:
        at, step = rows.places[name]
        step_b0 = step * self.operands["query"].shape[1]
        return at + box.b0[0] * step_b0 + box.b1[0] * step, step_b0, step

    def _held(self, name: str, box: Box, rows: Rows, group: int) -> Held:
        if name not in stored_names(self.problem):
            return Held()
        # Where a row may end as the mean of V, every key is read.
        lengths = self.problem.keys.lengths and self.problem.empty_rows != "mean"
        rotated = self._rotated(name)
        pinned = self.call.ring if rotated else None
        scaled = rotated and self.problem.scales
        return Held(
            first=box.s[0],
            rows=rows.resource,
            lengths=self._row("key_value_lengths", box, rows) if lengths or pinned is not None else None,
            pages=self._row("pages", box, rows) if self.problem.paged else None,
            page_size=self.call.page_size or 1,
            tokens=box.size("s"),
            ring=None if pinned is None else (key_count(self.call, self.operands), pinned),
            scales=cut("scales", self.operands["scales"], box, group, self.problem.paged) if scaled else None,
        )

    def _rotation(self, name: str, box: Box, rows: Rows) -> Rotation | None:
        rope, style = self.call.rope, self.problem.rope
        if rope is None or style is None or not self._rotated(name):
            return None
        pairs = rope.rotated(self.operands["query"].shape[4]) // 2
        if name == "key":
            return Rotation(style, pairs, box.s[0])
        if not self.problem.query_offset or rows.resource is None:
            return Rotation(style, pairs, box.t[0])
        return Rotation(style, pairs, box.t[0], (rows.resource, *self._row("query_offset", box, rows)))


def texture_fields(names: tuple[str, ...], paged: bool = False) -> tuple[tuple[str, Scalar], ...]:
    """The parameters that say where rows lie in the textures of `names`."""
    more = [f"{name}_pooled" for name in names if paged and name not in ("query", *DENSE)]
    more += ["scales_step"] if "scales" in names else []
    more += [f"{name}_entry_{axis}" for name in names if name in DENSE for axis in ("b", "n")]
    return (*(field for name in names for field in fields(name)), *((name, "u32") for name in more))
