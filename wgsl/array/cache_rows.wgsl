{% include "shared/prelude.wgsl" %}
{% import "array/elements.wgsl" as elements %}

// Reads the rows of a cache from a sequence's length on, zeros where an append would write none.
{{ elements.load_bits("cache", inputs[0][1]) }}
fn element({% for view in views %}{{ view }}_at: u32{{ ", " if not loop.last }}{% endfor %}) -> u32 {
    let start = min(u32(max(bitcast<i32>(lengths[lengths_at]), 0)), parameters.capacity);
%% if "counts" in views
    let count = u32(clamp(bitcast<i32>(counts[counts_at]), 0, i32(parameters.T)));
%% else
    let count = parameters.T;
%% endif
    if (time_at >= min(count, parameters.capacity - start)) { return 0u; }
    return load_bits_cache(cache_at + (start + time_at) * parameters.slot_step);
}
{% include "array/pointwise.wgsl" %}
