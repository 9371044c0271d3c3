{# Macros: how flash_tiled brings rows into workgroup memory. A thread reads all that it has of a stage before it stores
   any of it, and before the barrier that frees the place: it waits for storage once, while others still multiply.
   Import it with its context. #}
{% set xyzw = "xyzw" %}
{# A stage of `count` pieces: how many a thread has; which is its number p, the last one where there are no more; and
   what keeps that from being stored. #}
{% macro pieces(count) %}{{ (count + WORKGROUP - 1) // WORKGROUP }}{% endmacro %}
{% macro piece(p, count) %}{{ "min(thread + %du, %du)" % (p * WORKGROUP, count - 1) if (p + 1) * WORKGROUP > count else "(thread + %du)" % (p * WORKGROUP) }}{% endmacro %}
{% macro guard(p, count) %}{{ "if (thread < %du) " % (count - p * WORKGROUP) if (p + 1) * WORKGROUP > count }}{% endmacro %}
{% set query_count = ROW_QUADS * STAGE_CHUNKS %}
{% set key_count = KEY_QUADS * STAGE_CHUNKS %}
{% set value_count = STAGE_KEYS * VALUE_CHUNKS %}
{% set query_pieces = range(pieces(query_count) | int) %}
{% set key_pieces = range(pieces(key_count) | int) %}
{% set value_pieces = range(pieces(value_count) | int) %}

{# The rows of Q of which a thread stages pieces, four a piece. Rows past the last are copies of it, and are not
   stored. #}
{% macro find_queries() %}
%% for p in query_pieces
    let query_quad_{{ p }} = {{ piece(p, query_count) }} / STAGE_CHUNKS;
    let query_chunk_{{ p }} = {{ piece(p, query_count) }} % STAGE_CHUNKS;
%% for e in range(4)
    let query_t_{{ p }}_{{ e }} = min(t_first + (4u * query_quad_{{ p }} + {{ e }}u) / HEADS, t_last);
    let query_n_{{ p }}_{{ e }} = min(n_first + (4u * query_quad_{{ p }} + {{ e }}u) % HEADS, n_last);
    let query_row_{{ p }}_{{ e }} = q_rows + query_t_{{ p }}_{{ e }} * parameters.query_t + query_n_{{ p }}_{{ e }} * parameters.query_n;
%% endfor
%% endfor
{% endmacro %}
{# STAGE_CHUNKS chunks of Q and K from `first` on. Keys past the last are copies of it, and are masked. #}
{% macro read_rows(first) %}
%% for p in query_pieces
%% for e in range(4)
            let query_{{ p }}_{{ e }} = scale * {{ "load_query_rotated" if problem.rope is not none else "load_query" }}(query_row_{{ p }}_{{ e }}, {{ first }} + query_chunk_{{ p }}{{ ", position_of(b, query_t_%d_%d)" % (p, e) if problem.rope is not none }});
%% endfor
%% endfor
%% for p in key_pieces
            let key_quad_{{ p }} = {{ piece(p, key_count) }} / STAGE_CHUNKS;
            let key_chunk_{{ p }} = {{ piece(p, key_count) }} % STAGE_CHUNKS;
%% for e in range(4)
            let key_s_{{ p }}_{{ e }} = min(tile + 4u * key_quad_{{ p }} + {{ e }}u, keys.y - 1u);
            let key_row_{{ p }}_{{ e }} = key_row_of(k_rows, b, key_slot(b, key_s_{{ p }}_{{ e }}), k);
            let key_{{ p }}_{{ e }} = {{ "load_key_rotated" if problem.rope is not none else "load_key" }}(key_row_{{ p }}_{{ e }}, {{ first }} + key_chunk_{{ p }}{{ ", key_position(b, key_s_%d_%d)" % (p, e) if problem.rope is not none }});
%% endfor
%% endfor
{% endmacro %}
{# Four rows of four dims as a part of four lines, a dim each. #}
{% macro store_turned(name, p, count, first, quads, mask) %}
            {{ guard(p, count) }}{
                let at = {{ first }} + 4u * {{ name }}_chunk_{{ p }} * {{ quads }} + ({{ name }}_quad_{{ p }} ^ ({{ name }}_chunk_{{ p }} & {{ mask }}));
%% for d in range(4)
                staged[at + {{ d }}u * {{ quads }}] = vec4f({% for e in range(4) %}{{ name }}_{{ p }}_{{ e }}.{{ xyzw[d] }}{{ ", " if e < 3 }}{% endfor %});
%% endfor
            }
{% endmacro %}
{% macro store_rows() %}
%% for p in query_pieces
{{ store_turned("query", p, query_count, "0u", "ROW_QUADS", "ROW_MASK") }}
%% endfor
%% for p in key_pieces
{{ store_turned("key", p, key_count, "KEYS_AT", "KEY_QUADS", "KEY_MASK") }}
%% endfor
{% endmacro %}

{# The values of STAGE_KEYS keys from the tile's `first` on, in variables, since the first are read early. #}
{% macro declare_values() %}
%% for p in value_pieces
    var value_{{ p }} = vec4f();
%% endfor
{% endmacro %}
{% macro read_values(first) %}
%% for p in value_pieces
            {
                let s = min(tile + {{ first }} + {{ piece(p, value_count) }} / VALUE_CHUNKS, keys.y - 1u);
                value_{{ p }} = load_value(value_row_of(v_rows, b, key_slot(b, s), k), {{ piece(p, value_count) }} % VALUE_CHUNKS);
%% if problem.paged
                if (!key_there(b, s)) {
                    value_{{ p }} = vec4f();
                }
%% endif
            }
%% endfor
{% endmacro %}
{% macro store_values() %}
%% for p in value_pieces
            {{ guard(p, value_count) }}{
                let line = {{ piece(p, value_count) }} / VALUE_CHUNKS;
                staged[VALUES_AT + line * VALUE_PITCH + {{ piece(p, value_count) }} % VALUE_CHUNKS] = value_{{ p }};
            }
%% endfor
{% endmacro %}
