{# Macros: how flash_matrix brings rows into workgroup memory. Import it with its context. #}
{# Q is staged where K is, TILE_K rows a turn. #}
{% set query_turns = (TILE_Q + TILE_K - 1) // TILE_K %}

{# How eight numbers become a word of four, each of two float16. #}
{% macro packing() -%}
fn eight(a: vec4f, b: vec4f) -> vec4u {
    return vec4u(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

%% if PARTS == 2
// The bits of a number that float16 has. By bits: a compiler may take the rounding of a number for the number itself.
fn coarse(x: vec4f) -> vec4f {
    return bitcast<vec4f>(bitcast<vec4u>(x) & vec4u(0xffffe000u));
}

%% endif
{%- endmacro %}

{# Eight elements of Q or K, where `there`, as they are or rotated, into a row of key_tile. #}
{% macro stage(name, there, at, position, to_row) %}
            var low = vec4f();
            var high = vec4f();
            if ({{ there }}) {
                let at = {{ at }};
%% if problem.rope is not none
                let p = {{ position }};
                low = load_{{ name }}_rotated(at, 2u * chunk, p);
                high = load_{{ name }}_rotated(at, 2u * chunk + 1u, p);
%% else
                low = load_{{ name }}(at, 2u * chunk);
                high = load_{{ name }}(at, 2u * chunk + 1u);
%% endif
            }
%% if PARTS == 2
            key_tile[{{ to_row }} * KEY_PITCH + chunk] = eight(coarse(low), coarse(high));
            key_tile[{{ to_row }} * KEY_PITCH + HEAD_EIGHTS + chunk] = eight(low - coarse(low), high - coarse(high));
%% else
            key_tile[{{ to_row }} * KEY_PITCH + chunk] = eight(low, high);
%% endif
{% endmacro %}

{# Q into registers, all of it. What lies past the last row or head is that one again: a branch would wait for what is
   read in it. #}
{% macro fetch_query() %}
%% if unit
%% for turn in range(query_turns)
%% for i in range(KEY_PIECES)
    var query_{{ turn }}_{{ i }} = vec4u();
    {
        let i = thread + {{ i }}u * WORKGROUP;
        let row = {{ turn }}u * TILE_K + i / HEAD_EIGHTS;
        let chunk = i % HEAD_EIGHTS;
        let at = query_row(b, min(t_first + row / HEADS, t_last), min(n_first + row % HEADS, n_last));
        query_{{ turn }}_{{ i }} = eight(load_query(at, 2u * chunk), load_query(at, 2u * chunk + 1u));
    }
%% endfor
%% endfor
%% endif
{% endmacro %}
{# Those of one turn into key_tile, from registers, or element by element from storage. #}
{% macro put_query(turn) %}
%% if unit
%% for i in range(KEY_PIECES)
%% if (i + 1) * WORKGROUP > TILE_K * HEAD_EIGHTS
    if (thread + {{ i }}u * WORKGROUP < TILE_K * HEAD_EIGHTS)
%% endif
    {
        let i = thread + {{ i }}u * WORKGROUP;
        key_tile[i / HEAD_EIGHTS * KEY_PITCH + i % HEAD_EIGHTS] = query_{{ turn }}_{{ i }};
    }
%% endfor
%% else
    for (var i = thread; i < TILE_K * HEAD_EIGHTS; i += WORKGROUP) {
        let staged = i / HEAD_EIGHTS;
        let chunk = i % HEAD_EIGHTS;
        let t = t_first + ({{ turn }}u * TILE_K + staged) / HEADS;
        let n = n_first + ({{ turn }}u * TILE_K + staged) % HEADS;
        {{ stage("query", "t <= t_last && n <= n_last", "query_row(b, t, n)", "position_of(b, t)", "staged") }}
    }
%% endif
{% endmacro %}

{# The key of a row of key_tile: after the first step of `tile` come its others, then the first one of `next`. #}
{% macro early(tile, next, row) -%}
{{ next ~ " + " ~ row if STEPS == 1 else "early_key(" ~ tile ~ ", " ~ next ~ ", " ~ row ~ ")" }}
{%- endmacro %}

{% macro early_key() -%}
%% if STEPS > 1
fn early_key(tile: u32, next: u32, row: u32) -> u32 {
    return select(tile + STEP_K + row, next + row - (TILE_K - STEP_K), row >= TILE_K - STEP_K);
}

%% endif
{%- endmacro %}

{# Rows of K or V, read into registers. `place` makes the key of a row; none lies at `end` or behind it. Threads past a
   tile's last word read it too, and those past a row's last one that: a branch would wait for what is read in it. #}
{% macro fetch(name, words, pieces, place, end) %}
{% set column = "i %% %du" % words if problem.exact_dims else "min(i %% %du, %s_words - 1u)" % (words, name) %}
%% if unit
{% if not problem.paged %}
        if ({{ end }} <= keys.y) {
%% for i in range(pieces)
            {
%% if (i + 1) * WORKGROUP > TILE_K * words
                let i = min(thread + {{ i }}u * WORKGROUP, TILE_K * {{ words }}u - 1u);
%% else
                let i = thread + {{ i }}u * WORKGROUP;
%% endif
                let s = {{ place("i / %du" % words) }};
                {{ name }}_{{ i }} = {{ name }}[{{ name }}_base + key_slot(b, s) * {{ name }}_step + {{ column }}];
            }
%% endfor
        } else {
{% else %}
        {
{% endif %}
%% for i in range(pieces)
            {
                let i = thread + {{ i }}u * WORKGROUP;
                let s = {{ place("i / %du" % words) }};
                {{ name }}_{{ i }} = vec4u();
                if (i < TILE_K * {{ words }}u && s < keys.y{{ " && key_there(b, s)" if problem.paged and name == "value" }}) {
                    {{ name }}_{{ i }} = {{ name }}[{{ name }}_base + key_slot(b, s) * {{ name }}_step + {{ column }}];
                }
            }
%% endfor
        }
%% endif
{% endmacro %}
{# K or V of a tile into workgroup memory, from registers, or element by element from storage. What pads a row of K is
   zero since Q was staged there; what pads one of V makes sums that nobody reads. #}
{% macro put(name, pitch, words, pieces, place) %}
%% if unit
%% for i in range(pieces)
        {
            let i = thread + {{ i }}u * WORKGROUP;
%% if not problem.exact_dims
            if (i < TILE_K * {{ words }}u && i % {{ words }}u < {{ name }}_words)
%% elif (i + 1) * WORKGROUP > TILE_K * words
            if (i < TILE_K * {{ words }}u)
%% endif
            {
                {{ name }}_tile[i / {{ words }}u * {{ pitch }} + i % {{ words }}u] = {{ name }}_{{ i }};
            }
        }
%% endfor
%% else
        for (var i = thread; i < TILE_K * {{ words }}u; i += WORKGROUP) {
            let staged = i / {{ words }}u;
            let chunk = i % {{ words }}u;
            let s = {{ place("staged") }};
%% if name == "key"
            {{ stage("key", "s < keys.y", "key_row(b, key_slot(b, s), k)", "key_position(b, s)", "staged") }}
%% else
            var words = vec4u();
            if (s < keys.y && key_there(b, s)) {
                let at = value_row(b, key_slot(b, s), k);
                words = eight(load_value(at, 2u * chunk), load_value(at, 2u * chunk + 1u));
            }
            value_tile[staged * {{ pitch }} + chunk] = words;
%% endif
        }
%% endif
{% endmacro %}
{% macro fetch_key(tile, next, end) %}
{% macro key_of(row) %}{{ early(tile, next, row) }}{% endmacro %}
{{ fetch("key", HEAD_EIGHTS, KEY_PIECES, key_of, end) }}
{% endmacro %}
{% macro put_key(tile, next) %}
{% macro key_of(row) %}{{ early(tile, next, row) }}{% endmacro %}
{{ put("key", "KEY_PITCH", HEAD_EIGHTS, KEY_PIECES, key_of) }}
{% endmacro %}
{% macro fetch_value(tile) %}
{% macro key_of(row) %}{{ tile }} + {{ row }}{% endmacro %}
{{ fetch("value", VALUE_EIGHTS, VALUE_PIECES, key_of, tile ~ " + TILE_K") }}
{% endmacro %}
{% macro put_value(tile) %}
{% macro key_of(row) %}{{ tile }} + {{ row }}{% endmacro %}
{{ put("value", "VALUE_PITCH", VALUE_EIGHTS, VALUE_PIECES, key_of) }}
{% endmacro %}
