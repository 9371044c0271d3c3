{# Where the rows of operands lie, and how their elements are read and written as f32. A part of hooks.wgsl. #}
{% import "shared/elements.wgsl" as elements %}
{% import "shared/rotations.wgsl" as rotations %}
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
{{ elements.unit_reader(name, dtype, unit, "parameters." + live, problem.exact_dims, "raw" if name in stored else "load") }}

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
// Where a stored row lies: its first element, and its scale, or of int4 the first of its scales, one a block of 32
// values.
struct StoredRow {
    at: u32,
    {{ "scales: u32" if blocks else "scale: f32" }},
}

// The first scale of key s's row, as the storage's token axis counts s; the value's come behind the key's.
fn scales_at(b: u32, s: u32, k: u32) -> u32 {
    return parameters.scales_at + (b / parameters.B1) * parameters.scales_b0 + (b % parameters.B1) * parameters.scales_b1
        + s * parameters.scales_s + k * parameters.scales_k;
}

{{ elements.key_scales(blocks) }}

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

// Where the work of one launch sits in the whole call: a launch serves a box of batch entries, heads, query rows and
// keys.
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
