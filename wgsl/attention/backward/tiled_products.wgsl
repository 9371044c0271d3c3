{# The two kinds of products of tiled.wgsl, each with what threads share for it staged in workgroup memory.
   Readers are calls with %s for a row and for a chunk of its dims. #}
{% set row_quads = range(ROWS // 4) %}
{% set item_quads = range(ITEMS // 4) %}
{% set xyzw = "xyzw" %}

{# Chunks [first, first + stage) of rows [from, last], copies of the last past it, as lines of a dim each. #}
{% macro stage_turned(reader, from, last, quads, mask, stage, at) %}
            for (var i = thread; i < {{ quads }} * {{ stage }}u; i += WORKGROUP) {
                let quad = i / {{ stage }}u;
                let chunk = i % {{ stage }}u;
%% for e in range(4)
                let four_{{ e }} = {{ reader % ("min(%s + 4u * quad + %du, %s)" % (from, e, last), "first + chunk") }};
%% endfor
                let at = {{ at }} + 4u * chunk * {{ quads }} + (quad ^ (chunk & {{ mask }}));
%% for d in range(4)
                staged[at + {{ d }}u * {{ quads }}] = vec4f(four_0.{{ xyzw[d] }}, four_1.{{ xyzw[d] }}, four_2.{{ xyzw[d] }}, four_3.{{ xyzw[d] }});
%% endfor
            }
{% endmacro %}

{# name_i_j += the product of streamed row i and the own rows of quad j, `stage` chunks of their dims at a time. #}
{% macro products(name, own, stream, chunks, stage) %}
        for (var first = 0u; first < {{ chunks }}; first += {{ stage }}u) {
            workgroupBarrier();
{{ stage_turned(own, "first_own", "last_read", "OWN_QUADS", "OWN_MASK", stage, "0u") }}
{{ stage_turned(stream, "tile", "tile_last", "STREAM_QUADS", "STREAM_MASK", stage, "%du * OWN" % stage) }}
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

{# sum_r_c += the streamed rows times what own row r has for them in factor_i_j, `rows` of them at a time. #}
{% macro add_products(sum, factor, reader, chunks, columns, rows) %}
        for (var first = 0u; first < STREAM; first += {{ rows }}u) {
            workgroupBarrier();
            for (var i = thread; i < {{ rows }}u * {{ chunks }}; i += WORKGROUP) {
                let line = i / {{ chunks }};
                let chunk = i % {{ chunks }};
                staged[{{ rows }}u * OWN_QUADS + line * {{ columns }}u * ACROSS + chunk] = {{ reader % ("min(tile + first + line, tile_last)", "chunk") }};
            }
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
        }
{% endmacro %}
