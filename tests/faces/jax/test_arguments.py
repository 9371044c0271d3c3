"""What is no array is refused by the argument's name, as outside of JAX."""

from typing import Any

import numpy as np
import pytest

import wgattn.jax
from wgattn import masks

pytestmark = pytest.mark.device
Q = np.ones((1, 5, 2, 16), np.float32)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"value": None}, "value must be an array or a number; got None"),
        ({"query": "q"}, "query must be an array or a number; got 'q'"),
        ({"scale": "x"}, "scale must be an array or a number; got 'x'"),
        ({"key_value_seq_lengths": "all"}, "key_value_seq_lengths must be an array or a number; got 'all'"),
        ({"mask": "causal"}, "got 'causal': is_causal=True is the causal one"),
        ({"mask": masks.causal}, r"call it: wgattn.masks.causal\(\)"),
    ],
)
def test_arguments_are_named(arguments: dict[str, Any], text: str):
    with pytest.raises(TypeError, match=text):
        wgattn.jax.dot_product_attention(**{"query": Q, "key": Q, "value": Q, **arguments})


def test_an_array_without_a_value_is_told_from_one():
    with pytest.raises(TypeError, match=r"query: .* which wgattn.jit traces without values.* use wgattn.nn"):
        wgattn.make_graph(lambda x: wgattn.jax.dot_product_attention(x, Q, Q))(Q)
