{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}
{% set source_dtype = inputs[0][1] %}

// Copies elements from anywhere to anywhere, with a cast on the way. Elements of one type go over bit for bit.
%% if source_dtype == result_dtype
{{ elements.load_bits("source", source_dtype) }}
fn element(source_at: u32) -> u32 {
    return load_bits_source(source_at);
}
%% else
{{ elements.load("source", source_dtype) }}
{{ elements.cast("cast_source", elements.register(source_dtype), result_dtype) }}
{{ elements.store(result_dtype) }}
fn element(source_at: u32) -> u32 {
    return encode(cast_source(load_source(source_at)));
}
%% endif
{% include "array/pointwise.wgsl" %}
