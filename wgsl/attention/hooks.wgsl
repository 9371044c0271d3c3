{# What every attention kernel shares: where rows lie (operand_rows.wgsl), which keys a row keeps (key_ranges.wgsl),
   what a logit is, how a row ends (row_ends.wgsl). Included after the prelude; needs `problem`, HEAD_DIM, VALUE_DIM,
   PARTIAL, NATURAL. Operands that are textures, or not bound at all, are named in UNBUFFERED; "segments" in it says
   that the kernel compares the ids by itself. #}
{% import "shared/ring.wgsl" as ring %}
{% include "shared/bases.wgsl" %}
// A logit that no kept key has: kept logits are never below LOWEST_KEPT, so nothing here depends on infinities.
const MASKED: f32 = -3.4028234663852886e38;
const LOWEST_KEPT: f32 = -3.4028232635611926e38;
// The residual of a row that keeps no key: -0.7 times the largest float32.
const EMPTY_RESIDUAL: f32 = -2.3819763434698045e38;
const FAR: i32 = {{ far }};
{# Logits are kept in base 2, unless a bias is added: log2(e) times a large finite bias could overflow. #}

{% include "attention/operand_rows.wgsl" %}
%% if rows_bound
// The small run-time arrays of a call lie one after another in `rows`; a step of 0 serves every batch entry alike.
%% for name in row_names
fn row_{{ name }}(b: u32, index: u32) -> u32 {
    return rows[parameters.{{ name }}_at + batch_of(b) * parameters.{{ name }}_step + index];
}

%% endfor
%% endif
fn query_length(b: u32) -> u32 {
%% if problem.query_lengths
    return u32(clamp(bitcast<i32>(row_query_lengths(b, 0u)), 0, i32(parameters.T_all)));
%% else
    return parameters.T_all;
%% endif
}

// The keys that a sequence has; more than there are slots in a ring.
fn key_length(b: u32) -> i32 {
%% if problem.ring
    return max(bitcast<i32>(row_key_value_lengths(b, 0u)), 0);
%% elif problem.keys.lengths
    return clamp(bitcast<i32>(row_key_value_lengths(b, 0u)), 0, i32(parameters.S));
%% else
    return i32(parameters.S);
%% endif
}

%% if problem.paged
fn key_page(b: u32, s: u32) -> u32 {
    return row_pages(b, s >> parameters.page_bits);
}

%% endif
// Whether a page holds key s; a table that says otherwise has no key there.
fn key_there(b: u32, s: u32) -> bool {
    return {{ "key_page(b, s) < parameters.pool_pages" if problem.paged else "true" }};
}

// Where key s lies along the token axis of what is bound: never outside it, whatever a page table says.
fn key_slot(b: u32, s: u32) -> u32 {
%% if problem.paged
    let page = min(key_page(b, s), parameters.pool_pages - 1u);
    return (page << parameters.page_bits) | (s & ((1u << parameters.page_bits) - 1u));
%% else
    return s - parameters.key_first;
%% endif
}

%% if problem.ring
{{ ring.position() }}

%% endif
// The position of what lies in slot s, which is below key_length.
fn key_position(b: u32, s: u32) -> i32 {
%% if problem.ring
    return ring_position(i32(s), key_length(b), i32(parameters.S), i32(parameters.pinned));
%% else
    return i32(s);
%% endif
}

{% include "attention/key_ranges.wgsl" %}
%% if problem.softcap
// tanh to 1e-7 relative: a series near 0, where the built-in one is off by 6e-5, and exp elsewhere.
fn tanh_exact(x: f32) -> f32 {
    let a = abs(x);
    let square = x * x;
    let tail = -0.053968254 + square * (0.021869488 + square * -0.008863236);
    let small = x * (1.0 + square * (-0.33333334 + square * (0.13333334 + square * tail)));
    let square_ratio = exp2(-2.0 * LOG2_E * a);
    let large = sign(x) * (1.0 - square_ratio) / (1.0 + square_ratio);
    return select(large, small, a < 0.3);
}

%% endif
// sum + a · b in four fused steps: dot() and an addition are five.
fn add_dot(sum: f32, a: vec4f, b: vec4f) -> f32 {
    return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, sum))));
}

%% if problem.segments
fn same_segment(b: u32, t: u32, s: u32) -> bool {
    return row_query_segments(b, parameters.t_first + t) == row_key_segments(b, s);
}

%% endif
// What a query row is multiplied by as it is read.
fn query_scale(b: u32) -> f32 {
%% if problem.run_time_scale
    return parameters.scale * bitcast<f32>(row_scale(b, 0u));
%% else
    return parameters.scale;
%% endif
}

// The logit of a key that is kept and has no bias.
fn capped(product: f32) -> f32 {
%% if problem.softcap
    let x = parameters.softcap * tanh_exact(product / parameters.softcap);
%% if NATURAL
    return x;
%% else
    return x * LOG2_E;
%% endif
%% else
    return product;
%% endif
}

{# What is looked up for each logit, and what a kernel that reads it from textures hands over instead. #}
{% set has_bias, has_mask = problem.bias is not none, problem.mask %}
{% set bias_read, mask_read = has_bias and "bias" not in UNBUFFERED, has_mask and "mask" not in UNBUFFERED %}
{% set looked_up = bias_read or mask_read or (problem.segments and "segments" not in UNBUFFERED) %}
{% set bias_given, mask_given = has_bias and not bias_read, has_mask and not mask_read %}
{% set dense_types = (", bias_value: f32" if bias_given else "") ~ (", mask_value: bool" if mask_given else "") %}
{% set dense_values = (", bias_value" if bias_given else "") ~ (", mask_value" if mask_given else "") %}
// The logit of key s for row t from the scaled product q · k: softcap, bias, masks, in that order. MASKED where the key
// is not kept.
fn logit(product: f32, b: u32, n: u32, t: u32, s: u32, kept: Kept{{ dense_types }}) -> f32 {
%% if problem.paged
    if (!key_there(b, s)) {
        return MASKED;
    }
%% endif
    return logit_at(product, b, n, t, s, key_position(b, s), kept{{ dense_values }});
}

// The same for a key whose position is known, and that is there.
fn logit_at(product: f32, b: u32, n: u32, t: u32, s: u32, position: i32, kept: Kept{{ dense_types }}) -> f32 {
    var x = capped(product);
    var keep = in_range(kept, position);
%% if looked_up
    if (!keep) {
        return MASKED;
    }
%% endif
%% if bias_given
    keep = keep && bitcast<u32>(bias_value) != 0xff800000u;
    x += bias_value;
%% endif
%% if bias_read
    let bias_at = bias_row(b, n, t) + (s - parameters.key_first) * parameters.bias_s;
%% if bias_name == "f32"
    let bias_bits = bias[bias_at];
    keep = keep && bias_bits != 0xff800000u;
    x += bitcast<f32>(bias_bits);
%% else
    let bias_bits = (bias[bias_at / 2u] >> (16u * (bias_at % 2u))) & 0xffffu;
    keep = keep && bias_bits != {{ "0xfc00u" if bias_name == "f16" else "0xff80u" }};
    x += unpack_{{ bias_name }}(bias_bits).x;
%% endif
%% endif
%% if has_bias
    // By bits: a comparison may be compiled to a maximum, which loses a NaN.
    let bits = bitcast<u32>(x);
    x = select(x, LOWEST_KEPT, bits == 0xff7fffffu || bits == 0xff800000u);
%% endif
%% if mask_given
    keep = keep && mask_value;
%% elif mask_read
    let mask_at = mask_row(b, n, t) + (s - parameters.key_first) * parameters.mask_s;
    keep = keep && ((mask[mask_at / 4u] >> (8u * (mask_at % 4u))) & 0xffu) != 0u;
%% endif
%% if problem.segments and "segments" not in UNBUFFERED
    keep = keep && same_segment(b, t, s);
%% endif
    return select(MASKED, x, keep);
}

%% if bias_read
fn bias_row(b: u32, n: u32, t: u32) -> u32 {
    return parameters.bias_at + (b / parameters.B1) * parameters.bias_b0 + (b % parameters.B1) * parameters.bias_b1
        + n * parameters.bias_n + t * parameters.bias_t;
}

%% endif
%% if mask_read
fn mask_row(b: u32, n: u32, t: u32) -> u32 {
    return parameters.mask_at + (b / parameters.B1) * parameters.mask_b0 + (b % parameters.B1) * parameters.mask_b1
        + n * parameters.mask_n + t * parameters.mask_t;
}

%% endif
// exp of a difference of logits, both in this kernel's base; `top` is at least x.
fn decay(x: f32, top: f32) -> f32 {
%% if NATURAL
    return exp2((x - top) * LOG2_E);
%% else
    return exp2(x - top);
%% endif
}

// The weight of a key: 0 for one that is not kept, whatever `top` is.
fn weight(x: f32, top: f32) -> f32 {
    return select(decay(x, top), 0.0, x == MASKED);
}

{% include "attention/row_ends.wgsl" %}
