{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}
{% set comparisons = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal") %}
{% set ordered = compute == "f32" and (function in ("maximum", "minimum") or function in comparisons) %}
{% set operators = {"add": "+", "subtract": "-", "multiply": "*", "equal": "==", "not_equal": "!=",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="} %}
{% set letters = ["a", "b", "c"] %}

// {{ function }}, element by element, in {{ compute }}.
%% for name, dtype in inputs
{% set taken = "bool" if function == "where" and loop.first else compute %}
{{ elements.load(name, dtype) }}
{{ elements.cast("cast_" ~ name, elements.register(dtype), taken) }}
%% endfor
{{ elements.cast("cast_result", produced, result_dtype) }}
{{ elements.store(result_dtype) }}
%% if ordered
fn is_nan(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
}

// Integers in the order of the floats, both zeros 0: compilers may take it that no float is NaN or infinite.
fn order(value: f32) -> i32 {
    let bits = bitcast<i32>(value);
    return select(bits, -(bits & 0x7fffffff), bits < 0);
}
%% endif
%% if function == "exp"
// 2^n · e^r with |r| ≤ ln 2 / 2; the polynomial is Cephes', 2e-7 relative. Below 2^-126 the result is 0.
fn exponential(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    let inner = clamp(value, -87.5, 88.7228317);
    let n = i32(round(inner * 1.44269504));
    // Times 2^24, less n · 2^24 · ln 2: in integers, so that no compiler reassociates.
    let fixed = i32(round(inner * 16777216.0)) - n * 11629080;
    let r = f32(fixed) * 5.9604644775390625e-8 + f32(n) * 1.9046543e-9;
    var series = 1.9875691500e-4 * r + 1.3981999507e-3;
    series = series * r + 8.3334519073e-3;
    series = series * r + 4.1665795894e-2;
    series = series * r + 1.6666665459e-1;
    series = series * r + 5.0000001201e-1;
    series = series * r * r + r + 1.0;
    var found = bitcast<u32>(bitcast<i32>(series) + (n << 23u));
    found = select(found, 0u, value < -87.3);
    found = select(found, 0x7f800000u, value > 88.7228317);
    found = select(found, 0u, bits == 0xff800000u);
    found = select(found, 0x7f800000u, bits == 0x7f800000u);
    found = select(found, bits, (bits & 0x7fffffffu) > 0x7f800000u);
    return bitcast<f32>(found);
}
%% endif

%% if function == "divide"
// A device may multiply by 1 / b, which is below the least normal number, and so perhaps 0, for the largest b.
fn quotient(a: f32, b: f32) -> f32 {
    let scale = select(1.0, 2.3283064365386963e-10, abs(b) > 4.2535296e37);
    return (a * scale) / (b * scale);
}
%% endif

{% if function == "where" %}
fn apply(condition: bool, a: {{ compute }}, b: {{ compute }}) -> {{ produced }} {
    return select(b, a, condition);
}
{% else %}
fn apply({% for _ in inputs %}{{ letters[loop.index0] }}: {{ compute }}{{ ", " if not loop.last }}{% endfor %}) -> {{ produced }} {
%% if function in ("maximum", "minimum")
%% if compute == "f32"
    let chosen = select(b, a, order(a) {{ ">=" if function == "maximum" else "<=" }} order(b));
    return bitcast<f32>(select(bitcast<u32>(chosen), 0x7fc00000u, is_nan(a) || is_nan(b)));
%% elif compute == "bool"
    return a {{ "||" if function == "maximum" else "&&" }} b;
%% else
    return {{ function[:3] }}(a, b);
%% endif
%% elif ordered
%% if function == "not_equal"
    return is_nan(a) || is_nan(b) || order(a) != order(b);
%% else
    return !is_nan(a) && !is_nan(b) && order(a) {{ operators[function] }} order(b);
%% endif
%% elif function == "exp"
    return exponential(a);
%% elif function == "divide"
    return quotient(a, b);
%% elif function == "negative"
%% if compute == "f32"
    return bitcast<f32>(bitcast<u32>(a) ^ 0x80000000u);
%% else
    return {{ "!a" if compute == "bool" else "0" ~ compute[0] ~ " - a" }};
%% endif
%% elif function in ("logical_and", "logical_or")
    return a {{ "&&" if function == "logical_and" else "||" }} b;
%% elif function == "logical_not"
    return !a;
%% elif compute == "bool" and function in ("add", "subtract", "multiply")
    return a {{ {"add": "||", "subtract": "!=", "multiply": "&&"}[function] }} b;
%% else
    return a {{ operators[function] }} b;
%% endif
}
{% endif %}

fn element({% for name, _ in inputs %}{{ name }}_at: u32{{ ", " if not loop.last }}{% endfor %}) -> u32 {
    return encode(cast_result(apply(
%% for name, _ in inputs
        cast_{{ name }}(load_{{ name }}({{ name }}_at)),
%% endfor
    )));
}
{% include "array/pointwise.wgsl" %}
