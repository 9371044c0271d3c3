"""What a schedule moves about: values with a size, the steps that write and read them, and a recorder of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wgattn._kernels.kernel import Bytes, Copy, CopyToTexture, Launch, Plan, Texture

from .operands import padded


@dataclass(frozen=True, slots=True)
class Value:
    """A buffer of `nbytes`, or a texture. `content`: a constant's bytes; `argument`: a program input's number.

    Of an input, `reusable` bytes may be written over once it is donated: its padding is not the caller's to hand back.
    """

    nbytes: int
    texture: Texture | None = None
    content: bytes | None = None
    argument: int | None = None
    reusable: int = 0

    @property
    def made(self) -> bool:
        """Whether some step of the program writes it."""
        return self.content is None and self.argument is None


@dataclass(frozen=True, slots=True)
class Step:
    """A planned step, and the value that each of its names stands for."""

    planned: Launch | Copy | CopyToTexture
    names: Mapping[str, int]
    label: str = ""

    def uses(self) -> list[tuple[int, Literal["read", "write"]]]:
        """The values that are touched, and how."""
        if isinstance(self.planned, Launch):
            found = []
            for binding in self.planned.variant.bindings:
                given = self.planned.resources[binding.name]
                name = given.name if isinstance(given, Bytes) else given
                found.append((self.names[name], "write" if binding.access.startswith("write") else "read"))
            return found
        return [(self.names[self.planned.source.name], "read"), (self.names[self.planned.destination], "write")]


@dataclass(slots=True)
class Steps:
    """The program in the making."""

    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _constants: dict[bytes, int] = field(default_factory=dict)

    def new(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def buffer(self, nbytes: int) -> int:
        return self.new(Value(padded(nbytes)))

    def constant(self, content: bytes) -> int:
        """A value of known bytes; equal ones are one value."""
        content = content.ljust(padded(len(content)), b"\0")
        if content not in self._constants:
            self._constants[content] = self.new(Value(len(content), content=content))
        return self._constants[content]

    def run(self, plan: Plan, names: Mapping[str, int], label: str = "") -> None:
        """Add a plan's steps, with new values for its scratch and constants."""
        scratch = {
            name: self.buffer(given.nbytes) if not isinstance(given, Texture) else self.new(Value(0, texture=given))
            for name, given in plan.scratch.items()
        }
        known = {**names, **scratch, **{name: self.constant(content) for name, content in plan.constants.items()}}
        self.steps += [Step(planned, known, label) for planned in plan.steps]
