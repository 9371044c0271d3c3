{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}
{% set source_dtype = inputs[0][1] %}
{% set zero = {"f32": "0.0", "i32": "0i", "u32": "0u"}[accumulator] %}

// An element is the sum of every `parts`-th of `count` elements that lie over its address, in four interleaved sums.
{{ elements.load("source", source_dtype) }}
{{ elements.cast("cast_source", elements.register(source_dtype), accumulator) }}
{{ elements.cast("cast_result", accumulator, result_dtype) }}
{{ elements.store(result_dtype) }}

fn term(start: u32, number: u32) -> {{ accumulator }} {
    if (number >= parameters.count) { return {{ zero }}; }
    var at = start;
%% if over_rank > 0
    var rest = number;
%% for axis in range(over_rank - 1, -1, -1)
%% if axis == 0
    at = at + rest * parameters.over_stride0;
%% else
    at = at + (rest % parameters.over_size{{ axis }}) * parameters.over_stride{{ axis }};
    rest = rest / parameters.over_size{{ axis }};
%% endif
%% endfor
%% endif
    return cast_source(load_source(at));
}

fn element(source_at: u32, part_at: u32) -> u32 {
    let step = parameters.parts;
    var sum0 = {{ zero }};
    var sum1 = {{ zero }};
    var sum2 = {{ zero }};
    var sum3 = {{ zero }};
    for (var number = part_at; number < parameters.count; number = number + 4u * step) {
        sum0 = sum0 + term(source_at, number);
        sum1 = sum1 + term(source_at, number + step);
        sum2 = sum2 + term(source_at, number + 2u * step);
        sum3 = sum3 + term(source_at, number + 3u * step);
    }
    var total = (sum0 + sum1) + (sum2 + sum3);
%% if divide
    total = total / parameters.divisor;
%% endif
    return encode(cast_result(total));
}
{% include "array/pointwise.wgsl" %}
