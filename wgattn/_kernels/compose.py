"""A Variant's WGSL: the Jinja2 template in wgsl/ with the variant's constants, bindings and parameter struct.

Templates use line statements that start with `%%`, `{{ value }}` for values, `{% include %}` and `{% import %}` for
shared modules, and see every constant of the variant under its own name; a name that is not there is an error. What
every kernel needs is written once, in `shared/prelude.wgsl`: the `enable` lines of the provider's dialect, a `const`
for each UPPER_CASE number, the bindings, the parameter struct.
"""

from functools import cache, lru_cache
from typing import Any, Literal

import jinja2

from wgattn._kernels.kernel import Variant
from wgattn._kernels.template_cache import TemplateCache
from wgattn._runtime.source import wgsl_root

Dialect = Literal["wgpu", "dawn"]
SYNTAX: dict[str, Any] = {
    "line_statement_prefix": "%%",
    "line_comment_prefix": "%#",
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
}


@lru_cache(maxsize=1024)
def compose(variant: Variant, dialect: Dialect = "wgpu") -> str:
    """The WGSL of `variant`, for naga ("wgpu") or Tint ("dawn")."""
    constants = dict(variant.constants)
    scalars = {
        name: value for name, value in constants.items() if name.isupper() and isinstance(value, bool | int | float)
    }
    text = _environment().get_template(variant.template)
    try:
        return text.render(
            constants,
            VARIANT=variant.name,
            DIALECT=dialect,
            FEATURES=variant.features,
            SCALARS=scalars,
            BINDINGS=variant.bindings,
            PARAMETERS=variant.parameters.fields,
        )
    except jinja2.UndefinedError as error:
        raise ValueError(f"cannot compose {variant.name} from {variant.template}: {error.message}") from error


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(wgsl_root()),
        bytecode_cache=TemplateCache(str(SYNTAX)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        **SYNTAX,
    )
