{# Macros: how the backward kernel on matrix units brings rows into workgroup memory, and multiplies them there. Import it
   with its context. A row is copied 16 bytes at a time where `WIDE`, and by the shared readers elsewhere. #}
{% import "shared/matrices.wgsl" as matrices with context %}
{% set blocks = range(BLOCKS) %}
{% set columns = range(STREAM_BLOCKS) %}
{% set own_names = ("query", "grad_out") if BY == "query" else ("key", "value") %}
{% set stream_names = ("key", "value") if BY == "query" else ("query", "grad_out") %}
{% set own_head = "n" if BY == "query" else "k" %}
{% set stream_head = "k" if BY == "query" else "n" %}

{# Eight elements of a row, the chunk of that number. #}
{% macro words(name, at, chunk) -%}
{% if WIDE %}{{ name }}[({{ at }}) / 8u + {{ chunk }}]{% else %}eight(load_{{ name }}({{ at }}, 2u * ({{ chunk }})), load_{{ name }}({{ at }}, 2u * ({{ chunk }}) + 1u)){% endif %}
{%- endmacro %}

{# The place in what is bound of row `i`, counted as the kernel counts: keys within the whole call. #}
{% macro row(name, i, head) -%}
{{ name }}_row(b, {{ "%s - parameters.key_first" % i if name in ("key", "value") else i }}, {{ head }})
{%- endmacro %}

{# `count` own rows from `first` on into a tile. #}
{% macro stage_own(tile, name, eights, pitch, first, count) %}
        for (var i = thread; i < {{ count }} * {{ eights }}u; i += WORKGROUP) {
            let at = first_own + {{ first }} + i / {{ eights }}u;
            var four = vec4u();
            if (at < own_live) {
                four = {{ words(name, row(name, "at", own_head), "i %% %du" % eights) }};
            }
            {{ tile }}[i / {{ eights }}u * {{ pitch }} + i % {{ eights }}u] = four;
        }
{% endmacro %}

{% set own_use = "right" if SWAPPED else "left" %}
{% macro load_own(tile, at, pitch) -%}
{{ matrices.load(own_use, tile, at, pitch, "col_major" if SWAPPED else "row_major") }}
{%- endmacro %}

{# Own rows: matrices own_head_…, own_value_… where they are held, else a tile for good. #}
{% macro hold_own() %}
{% set sides = (("head", HOLD_HEAD, own_names[0], HEAD_EIGHTS, "HEAD_PITCH", HEAD_STEPS), ("value", HOLD_VALUE, own_names[1], VALUE_EIGHTS, "VALUE_PITCH", VALUE_STEPS)) %}
%% for side, held, name, eights, pitch, steps in sides
%% if not held
        {{ stage_own("own_%s_tile" % side, name, eights, pitch, "0u", "OWN") }}
%% else
%% for r in blocks
%% for c in range(steps)
    var own_{{ side }}_{{ r }}_{{ c }} = {{ matrices.type(own_use) }}();
%% endfor
%% endfor
%% endif
%% endfor
%% if HOLD_HEAD or HOLD_VALUE
    // As many own rows at a time as there is room for.
    for (var first = 0u; first < OWN; first += STAGED) {
        workgroupBarrier();
%% for side, held, name, eights, pitch, steps in sides
%% if held
        {{ stage_own("%s_tile" % side, name, eights, pitch, "first", "STAGED") }}
%% endif
%% endfor
        workgroupBarrier();
%% for r in blocks
        {
            let from_row = (subgroup * BLOCKS + {{ r }}u) * 16u;
            if (from_row / STAGED == first / STAGED) {
%% for side, held, name, eights, pitch, steps in sides
%% if held
%% for c in range(steps)
                own_{{ side }}_{{ r }}_{{ c }} = {{ load_own(side ~ "_tile", "(from_row - first) * %s + %du" % (pitch, 2 * c), pitch) }};
%% endfor
%% endif
%% endfor
            }
        }
%% endfor
    }
%% endif
{% endmacro %}

{# Where row 0 of the streamed head would lie: the divisions of a batch index stay out of the loop. #}
{% macro places() %}
%% if WIDE
%% for name, pieces in ((stream_names[0], HEAD_PIECES), (stream_names[1], VALUE_PIECES))
    let {{ name }}_base = {{ name }}_row(b, 0u, {{ stream_head }});
%% for i in range(pieces)
    var {{ name }}_{{ i }} = vec4u();
%% endfor
%% endfor
%% endif
%% if BY == "key_value"
    var fetched_tops = vec4f();
    var fetched_deltas = vec4f();
%% endif
{% endmacro %}

{# The streamed rows of a tile into registers: `head` counts heads of the group. #}
{% macro fetch(tile, head) %}
%% if WIDE
%% for name, pieces, eights in ((stream_names[0], HEAD_PIECES, HEAD_EIGHTS), (stream_names[1], VALUE_PIECES, VALUE_EIGHTS))
{% set step = "s" if BY == "query" else "t" %}
%% for i in range(pieces)
        {
            let i = thread + {{ i }}u * WORKGROUP;
            let at = {{ tile }} + i / {{ eights }}u;
            {{ name }}_{{ i }} = vec4u();
            if ({{ "i < STAGED * %du && " % eights if (i + 1) * WORKGROUP > STAGED * eights }}at < span.y) {
%% if BY == "query"
                {{ name }}_{{ i }} = {{ name }}[({{ name }}_base + (at - parameters.key_first) * parameters.{{ name }}_s) / 8u + i % {{ eights }}u];
%% else
                {{ name }}_{{ i }} = {{ name }}[({{ name }}_base + at * parameters.{{ name }}_t + {{ head }} * parameters.{{ name }}_n) / 8u + i % {{ eights }}u];
%% endif
            }
        }
%% endfor
%% endfor
%% endif
%% if BY == "key_value"
        if (thread < STAGED / 4u) {
%% for i in range(4)
            {
                let statistics = statistics_of(b, min({{ tile }} + 4u * thread + {{ i }}u, span.y - 1u), k * sharing + {{ head }});
                fetched_tops[{{ i }}] = statistics.top;
                fetched_deltas[{{ i }}] = statistics.delta;
            }
%% endfor
        }
%% endif
{% endmacro %}

{# The streamed rows into their tiles: from registers, or an element after another from storage. #}
{% macro put() %}
%% for side, name, pieces, eights, pitch in (("head", stream_names[0], HEAD_PIECES, HEAD_EIGHTS, "HEAD_PITCH"), ("value", stream_names[1], VALUE_PIECES, VALUE_EIGHTS, "VALUE_PITCH"))
%% if WIDE
%% for i in range(pieces)
%% if (i + 1) * WORKGROUP > STAGED * eights
        if (thread + {{ i }}u * WORKGROUP < STAGED * {{ eights }}u)
%% endif
        {
            let i = thread + {{ i }}u * WORKGROUP;
            {{ side }}_tile[i / {{ eights }}u * {{ pitch }} + i % {{ eights }}u] = {{ name }}_{{ i }};
        }
%% endfor
%% else
        for (var i = thread; i < STAGED * {{ eights }}u; i += WORKGROUP) {
            let at = staged + i / {{ eights }}u;
            var four = vec4u();
            if (at < span.y) {
                four = {{ words(name, row(name, "at", stream_head), "i %% %du" % eights) }};
            }
            {{ side }}_tile[i / {{ eights }}u * {{ pitch }} + i % {{ eights }}u] = four;
        }
%% endif
%% endfor
%% if BY == "key_value"
        if (thread < STAGED / 4u) {
            streamed_statistics[thread] = fetched_tops;
            streamed_statistics[STAGED / 4u + thread] = fetched_deltas;
        }
%% endif
{% endmacro %}

{# Own rows times streamed rows, into matrices {name}_{block}_{column}; SWAPPED: into their transposes. #}
{% macro products(name, side, steps, pitch, held, place) %}
%% for r in blocks
%% for t in columns
            {{ name }}_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% endfor
%% for c in range(steps)
            {
%% if not held
%% for r in blocks
                let own_{{ side }}_{{ r }}_{{ c }} = {{ load_own("own_%s_tile" % side, "(subgroup * BLOCKS + %du) * 16u * %s + %du" % (r, pitch, 2 * c), pitch) }};
%% endfor
%% endif
%% for t in columns
                let streamed_{{ t }} = {{ matrices.load("left" if SWAPPED else "right", side ~ "_tile", "(%s + %du) * %s + %du" % (place, 16 * t, pitch, 2 * c), pitch, "row_major" if SWAPPED else "col_major") }};
%% for r in blocks
{% set pair = "own_%s_%d_%d" % (side, r, c), "streamed_%d" % t %}
                {{ name }}_{{ r }}_{{ t }} = {{ matrices.multiply_add(pair[1 if SWAPPED else 0], pair[0 if SWAPPED else 1], "%s_%d_%d" % (name, r, t)) }};
%% endfor
%% endfor
            }
%% endfor
{% endmacro %}

{# The scores and the gradients by weights of a step. #}
{% macro both_products(place) %}
{{ products("score", "head", HEAD_STEPS, "HEAD_PITCH", HOLD_HEAD, place) }}
{{ products("gradient", "value", VALUE_STEPS, "VALUE_PITCH", HOLD_VALUE, place) }}
{% endmacro %}

{# Factors times streamed rows, onto the sums; TURNED: onto their transposes. #}
{% macro add_products(sums, factors, tile, steps, pitch) %}
%% for t in columns
%% for c in steps
            {
                let streamed = {{ matrices.load("left" if TURNED else "right", tile, "(place + %du) * %s + %du" % (16 * t, pitch, 2 * c), pitch, "col_major" if TURNED else "row_major") }};
%% for r in blocks
{% set pair = "%s_%d_%d" % (factors, r, t), "streamed" %}
                {{ sums }}_{{ r }}_{{ c }} = {{ matrices.multiply_add(pair[1 if TURNED else 0], pair[0 if TURNED else 1], "%s_%d_%d" % (sums, r, c)) }};
%% endfor
            }
%% endfor
%% endfor
{% endmacro %}
