{# Macros: how the backward kernel on matrix units brings rows into workgroup memory, and multiplies them there. Import
   it with its context. A row is copied 16 bytes at a time where `WIDE`, and by the shared readers elsewhere. Where its
   head dim is less than its class, the words that pad it are zero since own rows were staged, and stay so. #}
{% import "shared/matrices.wgsl" as matrices with context %}
{% set blocks = range(BLOCKS) %}
{% set columns = range(STREAM_BLOCKS) %}
{% set own_names = ("query", "grad_out") if BY == "query" else ("key", "value") %}
{% set stream_names = ("key", "value") if BY == "query" else ("query", "grad_out") %}
{% set own_use, own_order = ("right", "col_major") if BY == "query" else ("left", "row_major") %}
{% set stream_use, stream_order = ("left", "row_major") if BY == "query" else ("right", "col_major") %}
{% set own_head = "n" if BY == "query" else "k" %}
{% set stream_head = "k" if BY == "query" else "n" %}

{# Eight elements of a row, the chunk of that number. #}
{% macro words(name, at, chunk) -%}
{% if WIDE %}{{ name }}[({{ at }}) / 8u + {{ chunk }}]{% else %}eight(load_{{ name }}({{ at }}, 2u * ({{ chunk }})), load_{{ name }}({{ at }}, 2u * ({{ chunk }}) + 1u)){% endif %}
{%- endmacro %}

{# How many such words a row has that are no padding. #}
{% macro live_words(name) %}parameters.{{ "H" if name in ("query", "key") else "Hv" }} / 8u{% endmacro %}
{% set padded = WIDE and not problem.exact_dims %}

{# The place in what is bound of row `i`, counted as the kernel counts: keys within the whole call. #}
{% macro row(name, i, head) -%}
{{ name }}_row(b, {{ "%s - parameters.key_first" % i if name in ("key", "value") else i }}, {{ head }})
{%- endmacro %}

{# Own rows: matrices own_head_… and own_value_…, as many rows at a time as there is room for. #}
{% macro hold_own() %}
{% set sides = (("head", own_names[0], HEAD_EIGHTS, "HEAD_PITCH", HEAD_STEPS), ("value", own_names[1], VALUE_EIGHTS, "VALUE_PITCH", VALUE_STEPS)) %}
%% for side, name, eights, pitch, steps in sides
%% for r in blocks
%% for c in range(steps)
    var own_{{ side }}_{{ r }}_{{ c }} = {{ matrices.type(own_use) }}();
%% endfor
%% endfor
%% endfor
    for (var first = 0u; first < OWN; first += STAGED) {
        workgroupBarrier();
%% for side, name, eights, pitch, steps in sides
        for (var i = thread; i < STAGED * {{ eights }}u; i += WORKGROUP) {
            let at = first_own + first + i / {{ eights }}u;
            var four = vec4u();
            if (at < own_live{{ " && i %% %du < %s" % (eights, live_words(name)) if padded }}) {
                four = {{ words(name, row(name, "at", own_head), "i %% %du" % eights) }};
            }
            {{ side }}_tile[i / {{ eights }}u * {{ pitch }} + i % {{ eights }}u] = four;
        }
%% endfor
        workgroupBarrier();
%% for r in blocks
        {
            let from_row = (subgroup * BLOCKS + {{ r }}u) * 16u;
            if (from_row / STAGED == first / STAGED) {
%% for side, name, eights, pitch, steps in sides
%% for c in range(steps)
                own_{{ side }}_{{ r }}_{{ c }} = {{ matrices.load(own_use, side ~ "_tile", "(from_row - first) * %s + %du" % (pitch, 2 * c), pitch, own_order) }};
%% endfor
%% endfor
            }
        }
%% endfor
    }
{% endmacro %}

{# What find_largest compares elements by. #}
{% macro comparing() %}
%% if BY == "query"
// The larger of `most` and the elements of a word, as the bits of float16; NaN and infinity are passed over.
fn larger(most: u32, words: vec4u) -> u32 {
    var made = most;
    for (var i = 0u; i < 4u; i++) {
        let low = words[i] & 0x7fffu;
        let high = (words[i] >> 16u) & 0x7fffu;
        made = max(made, max(select(0u, low, low < 0x7c00u), select(0u, high, high < 0x7c00u)));
    }
    return made;
}

%% endif
{% endmacro %}

{# The largest element of an own row of value_dim, each lane from its half. #}
{% macro find_largest(r, other_half) %}
    var found_{{ r }} = 0u;
    if (own_{{ r }} < own_live) {
        let at = {{ row(own_names[1], "own_%d" % r, own_head) }};
        for (var i = half; i < {{ live_words(own_names[1]) if padded else "%du" % VALUE_EIGHTS }}; i += 2u) {
            found_{{ r }} = larger(found_{{ r }}, {{ words(own_names[1], "at", "i") }});
        }
    }
    var largest_{{ r }} = unpack2x16float(found_{{ r }}).x;
    largest_{{ r }} = max(largest_{{ r }}, {{ other_half("largest_%d" % r) }});
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
    var fetched_statistics = vec2f();
%% endif
{% endmacro %}

{# The streamed rows of a tile into registers: `head` counts heads of the group. #}
{% macro fetch(tile, head) %}
%% if WIDE
%% for name, pieces, eights in ((stream_names[0], HEAD_PIECES, HEAD_EIGHTS), (stream_names[1], VALUE_PIECES, VALUE_EIGHTS))
{% set column = ("min(i %% %du, %s - 1u)" % (eights, live_words(name)) if padded else "i %% %du" % eights) %}
%% for i in range(pieces)
        {
            let i = thread + {{ i }}u * WORKGROUP;
            let at = {{ tile }} + i / {{ eights }}u;
            {{ name }}_{{ i }} = vec4u();
            if ({{ "i < STAGED * %du && " % eights if (i + 1) * WORKGROUP > STAGED * eights }}at < span.y) {
%% if BY == "query"
                {{ name }}_{{ i }} = {{ name }}[({{ name }}_base + (at - parameters.key_first) * parameters.{{ name }}_s) / 8u + {{ column }}];
%% else
                {{ name }}_{{ i }} = {{ name }}[({{ name }}_base + at * parameters.{{ name }}_t + {{ head }} * parameters.{{ name }}_n) / 8u + {{ column }}];
%% endif
            }
        }
%% endfor
%% endfor
%% endif
%% if BY == "key_value"
        if (thread < STAGED) {
            let statistics = statistics_of(b, min({{ tile }} + thread, span.y - 1u), k * sharing + {{ head }});
            fetched_statistics = vec2f(statistics.top - WEIGHT_BITS, factor * statistics.delta);
        }
%% endif
{% endmacro %}

{# The streamed rows into their tiles: from registers, or an element after another from storage. #}
{% macro put() %}
%% for side, name, pieces, eights, pitch in (("head", stream_names[0], HEAD_PIECES, HEAD_EIGHTS, "HEAD_PITCH"), ("value", stream_names[1], VALUE_PIECES, VALUE_EIGHTS, "VALUE_PITCH"))
%% if WIDE
%% for i in range(pieces)
        {
            let i = thread + {{ i }}u * WORKGROUP;
%% if padded
            if (i < STAGED * {{ eights }}u && i % {{ eights }}u < {{ live_words(name) }})
%% elif (i + 1) * WORKGROUP > STAGED * eights
            if (i < STAGED * {{ eights }}u)
%% endif
            {
                {{ side }}_tile[i / {{ eights }}u * {{ pitch }} + i % {{ eights }}u] = {{ name }}_{{ i }};
            }
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
        if (thread < STAGED) {
            streamed_statistics[thread] = fetched_statistics;
        }
%% endif
{% endmacro %}

{# Streamed rows times own rows, into matrices {name}_{block}_{column}: scores' transposes. #}
{% macro products(name, side, steps, pitch) %}
%% for r in blocks
%% for t in columns
            var {{ name }}_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% endfor
%% for c in range(steps)
%% for t in columns
            {
                let streamed = {{ matrices.load(stream_use, side ~ "_tile", "(place + %du) * %s + %du" % (16 * t, pitch, 2 * c), pitch, stream_order) }};
%% for r in blocks
{% set own = "own_%s_%d_%d" % (side, r, c) %}
                {{ name }}_{{ r }}_{{ t }} = {{ matrices.multiply_add("streamed" if BY == "query" else own, own if BY == "query" else "streamed", "%s_%d_%d" % (name, r, t)) }};
%% endfor
            }
%% endfor
%% endfor
{% endmacro %}

{# Factors times streamed rows, onto the sums. #}
{% macro add_products(sums, factors, tile, steps, pitch) %}
%% for t in columns
%% for c in steps
            {
                let streamed = {{ matrices.load("right", tile, "(place + %du) * %s + %du" % (16 * t, pitch, 2 * c), pitch) }};
%% for r in blocks
                {{ sums }}_{{ r }}_{{ c }} = {{ matrices.multiply_add("%s_%d_%d" % (factors, r, t), "streamed", "%s_%d_%d" % (sums, r, c)) }};
%% endfor
            }
%% endfor
%% endfor
{% endmacro %}
