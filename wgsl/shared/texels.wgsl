{# Macros: rows of heads in textures (see texture.py). They need the bindings, the parameters of texture.fields(NAME), and FOLD. #}
{% import "shared/elements.wgsl" as elements %}

{# Where the texels of a head's row `index` of batch entry b start. #}
{% macro place(name) -%}
fn {{ name }}_place(b: u32, index: u32, head: u32) -> vec2u {
    let row = b * parameters.{{ name }}_rows + (index >> parameters.{{ name }}_side);
    let beside = index & ((1u << parameters.{{ name }}_side) - 1u);
    let x = (row >> FOLD) * parameters.{{ name }}_width + beside * parameters.{{ name }}_token + head * parameters.{{ name }}_head;
    return vec2u(x, row & ((1u << FOLD) - 1u));
}
{% endmacro %}

{# What kernels of keys in textures share: where the texels of a key start, where it stands, its scales. They need the hooks
   of attention; `names` are the textures that a key has rows in. #}
{% macro keys(problem, names, blocks) -%}
%% for name in names
{{ place(name) }}
// For key s: in a texture of a launch's keys or, where a pool of pages was copied whole, at its place in the pool.
fn {{ name }}_texels(b: u32, s: u32, slot: u32, k: u32) -> vec2u {
{# The scales of all heads of a token are one row. #}
{% set head = "0u" if name == "scales" else "k" %}
%% if problem.paged
    let whole = parameters.{{ name }}_pooled != 0u;
    let index = select(s - parameters.key_first, slot, whole);
    return {{ name }}_place(b, index, {{ head }}{{ " + select(0u, parameters.k_first, whole)" if name != "scales" }});
%% else
    return {{ name }}_place(b, s - parameters.key_first, {{ head }});
%% endif
}

%% endfor
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

{# Four keys of a row of bias or mask that starts at `at`, from key s of it on, a multiple of four: as f32, or as the
   bytes of a word. #}
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
