"""The float64 reference of a workload, of a sample of it where the whole would take long, and results beside it."""

from dataclasses import dataclass

import numpy as np

from wgattn._errors import ValidationError
from wgattn._reference import Tolerance, attention, tolerance
from wgattn._reference_cache import dequantise, quantise
from wgattn._reference_gradient import attention_gradient
from wgattn._validate.measure import chosen_rows, measure
from wgattn.bench.workload import DTYPES, Workload

LOGITS = 1 << 24  # that are compared with the reference; rows are sampled above
DECODE_LOGITS = 1 << 22
ARRAYS = ("query", "key", "value", "bias", "mask", "sinks", "query_seq_lengths", "key_value_seq_lengths")


@dataclass(frozen=True, slots=True)
class Right:
    """The reference of each result, the part of the result that it is of, and how far off that may be."""

    values: tuple[np.ndarray, ...]
    parts: tuple[tuple[slice | np.ndarray, ...], ...]
    allowed: Tolerance

    def error(self, results: tuple[np.ndarray, ...]) -> tuple[float, bool]:
        """max|result - reference| over all that was computed, and whether every result is within its tolerance."""
        found = [
            measure("", result[part], value, self.allowed, np.arange(value.shape[1]), 1)
            for result, part, value in zip(results, self.parts, self.values, strict=True)
        ]
        return max(each.most for each in found), all(each.ok for each in found)

    def check(self, what: str, results: tuple[np.ndarray, ...]) -> float:
        """The error of wgattn's own results. Raises ValidationError where they are off: then nothing is timed."""
        error, ok = self.error(results)
        if not ok:
            raise ValidationError(
                f"{what} is off by {error:.3g} (at most {self.allowed.most:.3g}): nothing is timed. "
                "`wgattn validate` checks the adapter; please report this with `wgattn info --json`"
            )
        return error


def forward(workload: Workload, arrays: dict[str, np.ndarray], logits: int = LOGITS) -> Right:
    """Of the call's result, at evenly spaced rows."""
    rows = chosen_rows(workload.B, workload.N, workload.T, workload.S, logits)
    given = {name: arrays[name] for name in ARRAYS if name in arrays}
    right = attention(**given, **_static(workload), rows=rows).out  # type: ignore[arg-type]
    return Right((right,), ((slice(None), rows),), tolerance(DTYPES[workload.dtype], workload.S))


def backward(workload: Workload, arrays: dict[str, np.ndarray], logits: int = LOGITS) -> Right:
    """Of the gradients by query, key and value, of as many key/value heads of the first sequence as hold `logits`."""
    group = workload.N // workload.K
    heads = min(workload.K, max(1, logits // (group * workload.T * workload.S)))
    queries = slice(0, 1), slice(None), slice(0, heads * group)
    keys = slice(0, 1), slice(None), slice(0, heads)
    given = arrays["query"][queries], arrays["key"][keys], arrays["value"][keys]
    right = attention_gradient(arrays["cotangent"][queries], *given, **_static(workload))  # type: ignore[arg-type]
    values = right.query, right.key, right.value
    return Right(values, (queries, keys, keys), tolerance(DTYPES[workload.dtype], workload.S, gradient=True))


def decode(workload: Workload, arrays: dict[str, np.ndarray], cache: str | None, logits: int = DECODE_LOGITS) -> Right:
    """Of the call's result over what a cache of dtype `cache` stores; None: over the keys and values as they are.

    All sequences hold the same tokens: one of them serves as many queries as hold `logits`, evenly spaced.
    """
    chosen = chosen_rows(1, workload.N, workload.B, workload.S, logits)
    keys, values = arrays["key"], arrays["value"]
    if cache is not None:
        keys, values = (dequantise(*quantise(x, cache), x.shape[-1], cache) for x in (keys, values))
    out = attention(arrays["query"][chosen].swapaxes(0, 1), keys, values).out.swapaxes(0, 1)
    return Right((out,), ((chosen,),), tolerance(DTYPES[workload.dtype], workload.S))


def _static(workload: Workload) -> dict[str, object]:
    left_out = ("implementation", "return_residual", "residual_dtype")
    return {name: value for name, value in workload.static.items() if name not in left_out}
