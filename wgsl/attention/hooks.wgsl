{# What every attention kernel shares: where rows lie, which keys a row keeps, what a logit is, how a row ends.
   Included after the prelude; needs `problem`, HEAD_DIM, VALUE_DIM, PARTIAL, NATURAL. Operands that are textures, or
   not bound at all, are named in UNBUFFERED; "segments" in it says that the kernel compares the ids by itself. #}
{% import "shared/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}
const LOG2_E: f32 = 1.4426950408889634;
const LN_2: f32 = 0.6931471805599453;
// A logit that no kept key has: kept logits are never below LOWEST_KEPT, so nothing here depends on infinities.
const MASKED: f32 = -3.4028234663852886e38;
const LOWEST_KEPT: f32 = -3.4028232635611926e38;
// The residual of a row that keeps no key: -0.7 times the largest float32.
const EMPTY_RESIDUAL: f32 = -2.3819763434698045e38;
const FAR: i32 = {{ far }};
{# Logits are kept in base 2, unless a bias is added: log2(e) times a large finite bias could overflow. #}

%% for dtype in names_16_bit
{{ elements.unpack_pair(dtype) }}
%% endfor
%% if out_name != "f32" and not PARTIAL
{{ elements.pack_pair(out_name) }}
%% endif

%% for dtype in names_8_bit
{{ elements.unpack_four(dtype) }}

%% endfor
{% set stored = ("key", "value") if problem.scales else () %}
{% set blocks = problem.scales and rows_read[1][1] == "u8" %}
%% for name, dtype, live in rows_read
%% if name not in UNBUFFERED
%% if unit and name != "query"
{{ elements.unit_reader(name, dtype, unit, "raw" if name in stored else "load") }}

%% else
%% if dtype != "u8"
{{ elements.element_reader(name, dtype, name in problem.vectors) }}

%% endif
{% set prefix = "raw" if name in stored else "load" %}
{{ elements.row_reader(name, dtype, name in problem.vectors, "parameters." + live, problem.exact_dims, prefix) }}

%% endif
%% endif
%% endfor
%% if problem.scales and "scales" not in UNBUFFERED
// Where a stored row lies: its first element, and its scale, or of int4 the first of its scales, one a block of 32 values.
struct StoredRow {
    at: u32,
    {{ "scales: u32" if blocks else "scale: f32" }},
}

// The first scale of key s's row, as the storage's token axis counts s; the value's come behind the key's.
fn scales_at(b: u32, s: u32, k: u32) -> u32 {
    return parameters.scales_at + (b / parameters.B1) * parameters.scales_b0 + (b % parameters.B1) * parameters.scales_b1
        + s * parameters.scales_s + k * parameters.scales_k;
}

fn key_scales() -> u32 {
    return {{ "(parameters.H + 31u) / 32u" if blocks else "1u" }};
}

%% for name, dtype, live in rows_read
%% if name in stored and name not in UNBUFFERED
fn load_{{ name }}(row: StoredRow, chunk: u32) -> vec4f {
%% if not blocks
    return row.scale * raw_{{ name }}(row.at, chunk);
%% else
%% if not problem.exact_dims
    if (4u * chunk >= parameters.{{ live }}) {
        return vec4f();
    }
%% endif
    return scales[row.scales + chunk / 8u] * raw_{{ name }}(row.at, chunk);
%% endif
}

%% endif
%% endfor
%% endif
%% if not PARTIAL and "out" not in UNBUFFERED
{{ elements.row_writer("out", out_name, "out" in problem.vectors, "parameters.Hv") }}
%% endif

// Where the work of one launch sits in the whole call: a launch serves a box of batch entries, heads, query rows and keys.
fn batch_of(b: u32) -> u32 {
    return (parameters.b0_first + b / parameters.B1) * parameters.B1_all + parameters.b1_first + b % parameters.B1;
}

fn row_of(b: u32, t: u32, n: u32) -> u32 {
    return (batch_of(b) * parameters.T_all + parameters.t_first + t) * parameters.N_all + parameters.n_first + n;
}

// The key/value head that query head n reads.
fn key_head(n: u32) -> u32 {
    return (parameters.n_first + n) / parameters.G - parameters.k_first;
}

%% for name, inner, outer in rows_placed
%% if name in stored
fn {{ name }}_row(b: u32, s: u32, k: u32) -> StoredRow {
    let first = scales_at(b, s, k){{ " + key_scales()" if name == "value" }};
    return StoredRow({{ name }}_element(b, s, k), {{ "first" if blocks else "scales[first]" }});
}

%% endif
fn {{ name }}_{{ "element" if name in stored else "row" }}(b: u32, {{ inner }}: u32, {{ outer }}: u32) -> u32 {
    return parameters.{{ name }}_at + (b / parameters.B1) * parameters.{{ name }}_b0 + (b % parameters.B1) * parameters.{{ name }}_b1
        + {{ inner }} * parameters.{{ name }}_{{ inner }} + {{ outer }} * parameters.{{ name }}_{{ outer }};
}

%% endfor
%% for name, inner, outer in rows_placed
%% if name in ("key", "value")
// The rows of key/value head k, found from its first one: a division by the batch axes stays out of the loop over keys.
fn {{ name }}_rows(b: u32, k: u32) -> u32 {
    return {{ name }}_{{ "element" if name in stored else "row" }}(b, 0u, k);
}

%% if name in stored
fn {{ name }}_row_of(rows: u32, b: u32, s: u32, k: u32) -> StoredRow {
    let first = scales_at(b, s, k){{ " + key_scales()" if name == "value" }};
    return StoredRow(rows + s * parameters.{{ name }}_s, {{ "first" if blocks else "scales[first]" }});
}
%% else
fn {{ name }}_row_of(rows: u32, b: u32, s: u32, k: u32) -> u32 {
    return rows + s * parameters.{{ name }}_s;
}
%% endif

%% endif
%% endfor
%% if problem.rope is not none and not ("query" in UNBUFFERED and "key" in UNBUFFERED)
{{ rotations.rotation() }}
%% for name in ("query", "key")
%% if name not in UNBUFFERED
{{ rotations.rotated_reader(name, problem.rope, "StoredRow" if name in stored else "u32") }}
%% endif
%% endfor
%% endif
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

// The position of what lies in slot s, which is below key_length.
fn key_position(b: u32, s: u32) -> i32 {
%% if problem.ring
    // Slots behind the pinned ones are filled in turn: this one holds the last position that came to it.
    let slot = i32(s);
    let turn = i32(parameters.S - parameters.pinned);
    return select(slot + (key_length(b) - 1 - slot) / turn * turn, slot, s < parameters.pinned);
%% else
    return i32(s);
%% endif
}

// Where query row t sits among the keys, before any mask's own offset.
fn position_of(b: u32, t: u32) -> i32 {
%% if problem.query_offset
    return i32(parameters.t_first + t) + clamp(bitcast<i32>(row_query_offset(b, 0u)), -FAR, FAR);
%% else
    return i32(parameters.t_first + t);
%% endif
}

// The keys that one row may keep: [first, end), and where two clauses are joined [also_first, also_end).
struct Kept {
    first: i32,
    end: i32,
%% if problem.keys.clauses | length > 1
    also_first: i32,
    also_end: i32,
%% endif
}

%% for clause in problem.keys.clauses
{% set clause_index = loop.index0 %}
fn clause_{{ clause_index }}(b: u32, p: i32) -> vec2i {
    var first = 0;
    var end = key_length(b);
%% for side, kind, source in clause
{% set field = "bound_" ~ clause_index ~ "_" ~ loop.index0 %}
{% set added = "parameters." ~ field %}
%% if source
    let {{ field }} = {{ added }} + clamp(bitcast<i32>(row_{{ bound_sources[clause_index][loop.index0] }}(b, 0u)), -FAR, FAR);
%% else
    let {{ field }} = {{ added }};
%% endif
%% if kind == "chunk"
    let chunk_{{ loop.index0 }} = floor_multiple(p, {{ field }});
%% if side == "lower"
    first = max(first, chunk_{{ loop.index0 }});
%% else
    end = min(end, chunk_{{ loop.index0 }} + {{ field }});
%% endif
%% else
{% set edge = "p + " ~ field if kind == "diagonal" else field %}
%% if side == "lower"
    first = max(first, {{ edge }});
%% else
    end = min(end, {{ edge }} + 1);
%% endif
%% endif
%% endfor
    return vec2i(first, max(first, end));
}

%% endfor
// The greatest multiple of `size` that is at most p, for negative p too.
fn floor_multiple(p: i32, size: i32) -> i32 {
    return p - (p % size + size) % size;
}

// Row t's kept keys over the whole call.
fn kept_keys(b: u32, t: u32) -> Kept {
    let p = position_of(b, t);
    let a = clause_0(b, p);
%% if problem.keys.clauses | length > 1
    let c = clause_1(b, p);
    if (parameters.t_first + t >= query_length(b)) {
        return Kept(0, 0, 0, 0);
    }
    return Kept(a.x, a.y, c.x, c.y);
%% else
    if (parameters.t_first + t >= query_length(b)) {
        return Kept(0, 0);
    }
    return Kept(a.x, a.y);
%% endif
}

// Every bound grows with the row, so a block of rows keeps nothing outside [first of its first row, end of its last row).
// The answer is clipped to keys [from, to) and is empty (x = y) where they do not meet.
fn block_keys(b: u32, t_first: u32, t_last: u32, from_key: u32, to_key: u32) -> vec2u {
%% if problem.ring
    // Slots hold positions in turn, so that ranges of them say nothing.
    var first = 0;
    var end = min(key_length(b), i32(parameters.S));
%% else
    let low = position_of(b, t_first);
    let high = position_of(b, t_last);
    var first = clause_0(b, low).x;
    var end = clause_0(b, high).y;
%% if problem.keys.clauses | length > 1
    first = min(first, clause_1(b, low).x);
    end = max(end, clause_1(b, high).y);
%% endif
%% if problem.keys.lengths
    // A row whose range is empty may have it behind the last key, where its window starts.
    end = min(end, key_length(b));
%% endif
%% endif
%% if problem.query_lengths
    if (parameters.t_first + t_first >= query_length(b)) {
        end = 0;
    }
%% endif
    let clipped = max(first, i32(from_key));
    return vec2u(u32(clipped), u32(max(clipped, min(end, i32(to_key)))));
}

// Whether every row of a block keeps every key of [first, end), as far as ranges go; false may also mean that it was not found out.
// Rows past the query length are not asked: they end as zeros.
fn block_keeps(b: u32, t_first: u32, t_last: u32, first: u32, end: u32) -> bool {
%% if problem.ring
    return false;
%% else
    let low = position_of(b, t_first);
    let high = position_of(b, t_last);
    var keeps = clause_0(b, high).x <= i32(first) && i32(end) <= clause_0(b, low).y;
%% if problem.keys.clauses | length > 1
    keeps = keeps || (clause_1(b, high).x <= i32(first) && i32(end) <= clause_1(b, low).y);
%% endif
%% if problem.paged
    for (var s = first; s < end; s = (s | ((1u << parameters.page_bits) - 1u)) + 1u) {
        keeps = keeps && key_there(b, s);
    }
%% endif
    return keeps;
%% endif
}

fn in_range(kept: Kept, s: i32) -> bool {
%% if problem.keys.clauses | length > 1
    return (s >= kept.first && s < kept.end) || (s >= kept.also_first && s < kept.also_end);
%% elif problem.keys.clauses[0] | selectattr(0, "equalto", "lower") | list
    return s >= kept.first && s < kept.end;
%% else
    return s < kept.end;
%% endif
}

fn range_is_empty(kept: Kept) -> bool {
%% if problem.keys.clauses | length > 1
    return kept.first >= kept.end && kept.also_first >= kept.also_end;
%% else
    return kept.first >= kept.end;
%% endif
}

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

// The logit of key s for row t from the scaled product q · k: softcap, bias, masks, in that order. MASKED where the key is not kept.
fn logit(product: f32, b: u32, n: u32, t: u32, s: u32, kept: Kept) -> f32 {
%% if problem.paged
    if (!key_there(b, s)) {
        return MASKED;
    }
%% endif
    return logit_at(product, b, n, t, s, key_position(b, s), kept);
}

// The same for a key whose position is known, and that is there.
fn logit_at(product: f32, b: u32, n: u32, t: u32, s: u32, position: i32, kept: Kept) -> f32 {
    var x = capped(product);
    var keep = in_range(kept, position);
%% if problem.dense
    if (!keep) {
        return MASKED;
    }
%% endif
%% if problem.bias is not none
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
    // By bits: a comparison may be compiled to a maximum, which loses a NaN.
    let bits = bitcast<u32>(x);
    x = select(x, LOWEST_KEPT, bits == 0xff7fffffu || bits == 0xff800000u);
%% endif
%% if problem.mask
    let mask_at = mask_row(b, n, t) + (s - parameters.key_first) * parameters.mask_s;
    keep = keep && ((mask[mask_at / 4u] >> (8u * (mask_at % 4u))) & 0xffu) != 0u;
%% endif
%% if problem.segments and "segments" not in UNBUFFERED
    keep = keep && same_segment(b, t, s);
%% endif
    return select(MASKED, x, keep);
}

%% if problem.bias is not none
fn bias_row(b: u32, n: u32, t: u32) -> u32 {
    return parameters.bias_at + (b / parameters.B1) * parameters.bias_b0 + (b % parameters.B1) * parameters.bias_b1
        + n * parameters.bias_n + t * parameters.bias_t;
}

%% endif
%% if problem.mask
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
