{# The two kinds of products of tiled.wgsl, each with what threads share for it staged in workgroup memory.
   Readers are calls with %s for a row and for a chunk of its dims. #}
{% set row_quads = range(ROWS // 4) %}
{% set item_quads = range(ITEMS // 4) %}
{% set xyzw = "xyzw" %}

{# Staging is a loop, or where AT_ONCE straight lines, which read all of a stage before they store it. #}
{# How many pieces of `count` a thread has, number p of them, and what keeps those past the last from being stored. #}
{% macro pieces(count) %}{{ (count + WORKGROUP - 1) // WORKGROUP }}{% endmacro %}
{% macro piece(p, count) %}{{ "min(thread + %du, %du)" % (p * WORKGROUP, count - 1) if (p + 1) * WORKGROUP > count else "(thread + %du)" % (p * WORKGROUP) }}{% endmacro %}
{% macro guard(p, count) %}{{ "if (thread < %du) " % (count - p * WORKGROUP) if (p + 1) * WORKGROUP > count }}{% endmacro %}
{# Piece i of a stage of one side: four rows, of which those past the last are copies of it, and a chunk of
   their dims. #}
{% macro read_quad(side, i, reader, from, last, stage) %}
            let {{ side }}_quad = ({{ i }}) / {{ stage }}u;
            let {{ side }}_chunk = ({{ i }}) % {{ stage }}u;
%% for e in range(4)
            let {{ side }}_four_{{ e }} = {{ reader % ("min(%s + 4u * %s_quad + %du, %s)" % (from, side, e, last), "first + %s_chunk" % side) }};
%% endfor
{% endmacro %}
{# The same piece as a part of four lines, a dim each. #}
{% macro store_turned(side, at, quads, mask) %}
            let {{ side }}_at = {{ at }}u + 4u * {{ side }}_chunk * {{ quads }} + ({{ side }}_quad ^ ({{ side }}_chunk & {{ mask }}));
%% for d in range(4)
            staged[{{ side }}_at + {{ d }}u * {{ quads }}] = vec4f({% for e in range(4) %}{{ side }}_four_{{ e }}.{{ xyzw[d] }}{{ ", " if e < 3 }}{% endfor %});
%% endfor
{% endmacro %}
{# `stage` chunks of both sides, own rows first. #}
{% macro stage_sides(own, stream, stage) %}
{% set sides = (
    ("own", own, "first_own", "last_read", 0, OWN_QUADS, "OWN_QUADS", "OWN_MASK"),
    ("stream", stream, "tile", "tile_last", stage * OWN, STREAM_QUADS, "STREAM_QUADS", "STREAM_MASK"),
) %}
%% if AT_ONCE
%% for side, reader, from, last, at, count, quads, mask in sides
%% for p in range(pieces(count * stage) | int)
{{ read_quad("%s_%d" % (side, p), piece(p, count * stage), reader, from, last, stage) }}
%% endfor
%% endfor
%% for side, reader, from, last, at, count, quads, mask in sides
%% for p in range(pieces(count * stage) | int)
            {{ guard(p, count * stage) }}{
{{ store_turned("%s_%d" % (side, p), at, quads, mask) }}
            }
%% endfor
%% endfor
%% else
%% for side, reader, from, last, at, count, quads, mask in sides
            for (var i = thread; i < {{ quads }} * {{ stage }}u; i += WORKGROUP) {
{{ read_quad(side, "i", reader, from, last, stage) }}
{{ store_turned(side, at, quads, mask) }}
            }
%% endfor
%% endif
{% endmacro %}
{# `rows` streamed rows from the tile's `first` on, a line each, after as many lines of factors. #}
{% macro stage_rows(reader, chunks, columns, rows) %}
%% if AT_ONCE
%% for p in range(pieces(rows * chunks) | int)
            let line_{{ p }} = {{ piece(p, rows * chunks) }} / {{ chunks }}u;
            let chunk_{{ p }} = {{ piece(p, rows * chunks) }} % {{ chunks }}u;
            let four_{{ p }} = {{ reader % ("min(tile + first + line_%d, tile_last)" % p, "chunk_%d" % p) }};
%% endfor
%% for p in range(pieces(rows * chunks) | int)
            {{ guard(p, rows * chunks) }}{
                staged[{{ rows }}u * OWN_QUADS + line_{{ p }} * {{ columns }}u * ACROSS + chunk_{{ p }}] = four_{{ p }};
            }
%% endfor
%% else
            for (var i = thread; i < {{ rows * chunks }}u; i += WORKGROUP) {
                let line = i / {{ chunks }}u;
                let chunk = i % {{ chunks }}u;
                staged[{{ rows }}u * OWN_QUADS + line * {{ columns }}u * ACROSS + chunk] = {{ reader % ("min(tile + first + line, tile_last)", "chunk") }};
            }
%% endif
{% endmacro %}

{# name_i_j += the product of streamed row i and the own rows of quad j, `stage` chunks of their dims at a time. #}
{% macro products(name, own, stream, chunks, stage) %}
        for (var first = 0u; first < {{ chunks }}u; first += {{ stage }}u) {
            workgroupBarrier();
{{ stage_sides(own, stream, stage) }}
            workgroupBarrier();
            for (var chunk = 0u; chunk < {{ stage }}u; chunk++) {
                let own_at = 4u * chunk * OWN_QUADS + (down ^ (chunk & OWN_MASK));
                let stream_at = {{ stage }}u * OWN + 4u * chunk * STREAM_QUADS + (across ^ (chunk & STREAM_MASK));
%% for d in range(4)
                {
%% for j in row_quads
                    let own_{{ j }} = staged[own_at + {{ d }}u * OWN_QUADS + {{ j }}u * DOWN];
%% endfor
%% for q in item_quads
                    let stream_{{ q }} = staged[stream_at + {{ d }}u * STREAM_QUADS + {{ q }}u * ACROSS];
%% endfor
%% for i in range(ITEMS)
%% for j in row_quads
                    {{ name }}_{{ i }}_{{ j }} = fma(vec4f(stream_{{ i // 4 }}.{{ xyzw[i % 4] }}), own_{{ j }}, {{ name }}_{{ i }}_{{ j }});
%% endfor
%% endfor
                }
%% endfor
            }
        }
{% endmacro %}

{# sum_r_c += `rows` staged rows times the factors that are staged before them. #}
{% macro add_staged(sum, columns, rows) %}
            for (var quad = 0u; quad < {{ rows // 4 }}u; quad++) {
                let factors_at = 4u * quad * OWN_QUADS + (down ^ (quad & OWN_MASK));
                let rows_at = {{ rows }}u * OWN_QUADS + 4u * quad * {{ columns }}u * ACROSS + across;
%% for e in range(4)
                {
%% for j in row_quads
                    let factor_{{ j }} = staged[factors_at + {{ e }}u * OWN_QUADS + {{ j }}u * DOWN];
%% endfor
%% for c in range(columns)
                    let four_{{ c }} = staged[rows_at + {{ e * columns }}u * ACROSS + {{ c }}u * ACROSS];
%% endfor
%% for r in range(ROWS)
%% for c in range(columns)
                    {{ sum }}_{{ r }}_{{ c }} = fma(vec4f(factor_{{ r // 4 }}.{{ xyzw[r % 4] }}), four_{{ c }}, {{ sum }}_{{ r }}_{{ c }});
%% endfor
%% endfor
                }
%% endfor
            }
{% endmacro %}

{# sum_r_c += the streamed rows times what own row r has for them in factor_i_j, `rows` of them at a time. #}
{% macro add_products(sum, factor, reader, chunks, columns, rows) %}
        for (var first = 0u; first < STREAM; first += {{ rows }}u) {
            workgroupBarrier();
{{ stage_rows(reader, chunks, columns, rows) }}
            // The factors of these rows, by the threads that made them.
%% for q in item_quads
            {
                let quad = across + {{ q }}u * ACROSS - first / 4u;
                if (quad < {{ rows // 4 }}u) {
                    let at = 4u * quad * OWN_QUADS + (down ^ (quad & OWN_MASK));
%% for e in range(4)
%% for j in row_quads
                    staged[at + {{ e }}u * OWN_QUADS + {{ j }}u * DOWN] = {{ factor }}_{{ 4 * q + e }}_{{ j }};
%% endfor
%% endfor
                }
            }
%% endfor
            workgroupBarrier();
{{ add_staged(sum, columns, rows) }}
        }
{% endmacro %}
