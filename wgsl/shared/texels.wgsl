{# Macros: rows of heads in textures (see texture.py). They need the bindings, the parameters of texture.fields(NAME),
   and FOLD. #}
{% import "shared/elements.wgsl" as elements %}

{# How rows lie in a texture. Kernels read it before their loops: a parameter that is read in one is read in each
   turn. #}
{% macro layout() -%}
struct Layout {
    row: u32,
    side: u32,
    width: u32,
    token: u32,
    head: u32,
    x: u32,
}

// Where the texels of row `index` of the layout's head start.
fn place_in(laid: Layout, index: u32) -> vec2u {
    let row = laid.row + (index >> laid.side);
    let beside = index & ((1u << laid.side) - 1u);
    return vec2u(laid.x + (row >> FOLD) * laid.width + beside * laid.token, row & ((1u << FOLD) - 1u));
}

{% endmacro %}
{# The layout for a head of batch entry b, and where the texels of its row `index` start. #}
{% macro place(name) -%}
fn {{ name }}_layout(b: u32, head: u32) -> Layout {
    let step = parameters.{{ name }}_head;
    return Layout(
        b * parameters.{{ name }}_rows, parameters.{{ name }}_side, parameters.{{ name }}_width,
        parameters.{{ name }}_token, step, head * step,
    );
}

fn {{ name }}_place(b: u32, index: u32, head: u32) -> vec2u {
    return place_in({{ name }}_layout(b, head), index);
}
{% endmacro %}

{# What kernels of keys in textures share: where the texels of a key start, where it stands, its scales. They need the
   hooks of attention; `names` are the textures that a key has rows in. #}
{% macro keys(problem, names, blocks) -%}
// How the keys of a key/value head lie, from key `first` on, or all of a pool.
struct Keys {
    laid: Layout,
    first: u32,
%% if problem.paged
    whole: bool,
%% endif
}

%% for name in names
{{ place(name) }}
fn {{ name }}_keys(b: u32, k: u32) -> Keys {
{# The scales of all heads of a token are one row. #}
{% set head = "0u" if name == "scales" else "k" %}
%% if problem.paged
    let whole = parameters.{{ name }}_pooled != 0u;
    let head = {{ head }}{{ " + select(0u, parameters.k_first, whole)" if name != "scales" }};
    return Keys({{ name }}_layout(b, head), parameters.key_first, whole);
%% else
    return Keys({{ name }}_layout(b, {{ head }}), parameters.key_first);
%% endif
}

%% endfor
// For key s: in a texture of a launch's keys or, where a pool of pages was copied whole, at its place in the pool.
fn key_texels(keys: Keys, s: u32, slot: u32) -> vec2u {
    return place_in(keys.laid, {{ "select(s - keys.first, slot, keys.whole)" if problem.paged else "s - keys.first" }});
}

// A position that no row keeps.
const NOWHERE: i32 = 2147483647;

// Where a page of keys starts in the pool, and whether there is one; without pages there always is.
struct Page {
    start: u32,
    there: bool,
}

fn find_page(b: u32, s: u32) -> Page {
%% if problem.paged
    let page = key_page(b, s);
    return Page(min(page, parameters.pool_pages - 1u) << parameters.page_bits, page < parameters.pool_pages);
%% else
    return Page(0u, true);
%% endif
}

// The key behind those that are looked up with key s, at most `end`.
fn page_end(s: u32, end: u32) -> u32 {
%% if problem.paged
    return min((s | ((1u << parameters.page_bits) - 1u)) + 1u, end);
%% else
    return end;
%% endif
}

// A key: its slot in the pool, and its position, NOWHERE for one that no page holds.
struct Found {
    slot: u32,
    position: i32,
}

fn find_key(s: u32, page: Page, length: i32) -> Found {
%% if problem.ring
    let position = ring_position(i32(s), length, i32(parameters.S), i32(parameters.pinned));
%% else
    let position = i32(s);
%% endif
%% if problem.paged
    let slot = page.start | (s & ((1u << parameters.page_bits) - 1u));
    return Found(slot, select(NOWHERE, position, page.there));
%% else
    return Found(s, position);
%% endif
}

%% if "scales" in names
// Where the scales of head k start among those of a token: those of its key, then those of its value.
fn first_scale(k: u32) -> u32 {
%% if problem.paged
    return (k + select(0u, parameters.k_first, parameters.scales_pooled != 0u)) * parameters.scales_step;
%% else
    return k * parameters.scales_step;
%% endif
}

// Scale i of a token.
fn scale_at(at: vec2u, i: u32) -> f32 {
    let four = textureLoad(scales, vec2u(at.x + i / 4u, at.y));
    let two = select(four.xy, four.zw, (i & 2u) != 0u);
    return select(two.x, two.y, (i & 1u) != 0u);
}

{{ elements.key_scales(blocks) }}

%% endif
{%- endmacro %}

{# Where row t of head n of a bias or mask starts: heads are batch entries, or columns. #}
{% macro dense_place(name) -%}
{{ place(name) }}
fn {{ name }}_row_place(b: u32, t: u32, n: u32) -> vec2u {
    return {{ name }}_place(b * parameters.{{ name }}_entry_b + n * parameters.{{ name }}_entry_n, t, n);
}

{% endmacro %}
{# Four keys of a row of bias or mask that starts at `at`, those that key s of it is one of: as f32, or as the bytes
   of a word. #}
{% macro four_of_row(name, dtype) -%}
%% if dtype == "f32"
fn {{ name }}_four(at: vec2u, s: u32) -> vec4f {
    return textureLoad({{ name }}, vec2u(at.x + s / 4u, at.y));
}
%% elif dtype == "bool"
fn {{ name }}_four(at: vec2u, s: u32) -> u32 {
    let texel = textureLoad({{ name }}, vec2u(at.x + s / 16u, at.y));
    let two = select(texel.xy, texel.zw, (s & 8u) != 0u);
    return select(two.x, two.y, (s & 4u) != 0u);
}
%% else
fn {{ name }}_four(at: vec2u, s: u32) -> vec4f {
    let texel = textureLoad({{ name }}, vec2u(at.x + s / 8u, at.y));
    let two = select(texel.xy, texel.zw, (s & 4u) != 0u);
    return vec4f(unpack_{{ dtype }}(two.x), unpack_{{ dtype }}(two.y));
}
%% endif
{%- endmacro %}

{# Any key of such a row, as logit_at takes it. #}
{% macro any_of_row(name) -%}
%% if name == "bias"
fn {{ name }}_one(at: vec2u, s: u32) -> f32 {
    let four = {{ name }}_four(at, s);
    let two = select(four.xy, four.zw, (s & 2u) != 0u);
    return select(two.x, two.y, (s & 1u) != 0u);
}
%% else
fn {{ name }}_one(at: vec2u, s: u32) -> bool {
    return (({{ name }}_four(at, s) >> (8u * (s & 3u))) & 0xffu) != 0u;
}
%% endif
{%- endmacro %}

{# One of these four keys, as logit_at takes it. #}
{% macro one_of_row(name, four, key) -%}
{{ "%s.%s" | format(four, "xyzw"[key]) if name == "bias" else "(%s & %su) != 0u" | format(four, 255 * 256 ** key) }}
{%- endmacro %}

{# Groups of four elements that a texel holds. #}
{% macro quads(dtype) -%}
{{ {"f32": 1, "f16": 2, "bf16": 2, "u8": 8}.get(dtype, 4) }}
{%- endmacro %}

{# Elements 4 · quad to 4 · quad + 3 of a texel, as f32; scales are not applied. Bytes ("u8") are packed int4. #}
{% macro four(texel, dtype, quad) -%}
{% if dtype == "f32" -%}
{{ texel }}
{%- elif dtype == "u8" -%}
unpack_u8({{ texel }}.{{ "xyzw"[quad // 2] }}{{ " >> 16u" if quad % 2 }})
{%- elif dtype not in ("f16", "bf16") -%}
unpack_{{ dtype }}({{ texel }}.{{ "xyzw"[quad] }})
{%- elif quad == 0 -%}
vec4f(unpack_{{ dtype }}({{ texel }}.x), unpack_{{ dtype }}({{ texel }}.y))
{%- else -%}
vec4f(unpack_{{ dtype }}({{ texel }}.z), unpack_{{ dtype }}({{ texel }}.w))
{%- endif %}
{%- endmacro %}
