{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/texels.wgsl" as texels %}
{% set quads = namespace(key=texels.quads(key_texel) | int, value=texels.quads(value_texel) | int) %}
{% set key_chunks, value_chunks = HEAD_DIM // 4, VALUE_DIM // 4 %}
{% set key_texels, value_texels = (key_chunks + quads.key - 1) // quads.key, (value_chunks + quads.value - 1) // quads.value %}
{% set key_reads, value_reads = (key_texels + SUBGROUP - 1) // SUBGROUP, (value_texels + SUBGROUP - 1) // SUBGROUP %}
{# Whether texels have room for more than a row: their last elements are not the row's. #}
{% set key_open, value_open = key_texels * quads.key > key_chunks, value_texels * quads.value > value_chunks %}
{% set found = problem.paged or problem.ring %}
{% set key_scaled, value_scaled, blocks = key_texel in ("u8", "i8"), value_texel in ("u8", "i8"), value_texel == "u8" %}

{# What lane `at` of those that share a key has. #}
{% macro of_lane(name, at) -%}
{% if LANES == 1 -%}
{{ name }}
{%- elif BESIDE == 1 -%}
subgroupShuffle({{ name }}, {{ at }}u)
{%- else -%}
{% set found = namespace(text="subgroupShuffle(%s, %su)" | format(name, at)) %}
{% for h in range(1, BESIDE) %}
{% set found.text = "select(%s, subgroupShuffle(%s, %su), beside == %su)" | format(found.text, name, h * LANES + at, h) %}
{% endfor %}
{{ found.text }}
{%- endif %}
{%- endmacro %}
// Decode, head dims in lanes, for CPU adapters: a subgroup owns one key/value head, HEADS query heads of its group and
// one part of its keys. A lane holds a texel of dims of the query rows and of their sums, and a turn takes TURN keys:
// one read of each serves all heads, and lanes add their products by shuffles that leave each lane the logits of a few
// heads, which alone it weighs. Rows of few texels leave lanes free: LANES of them share a key, and the subgroup takes
// several keys side by side, whose sums are joined at the end. The body is small on purpose: with eight keys unrolled
// it waits for its own instructions.

{{ texels.layout() }}
{{ texels.keys(problem, stored_names, blocks) }}
fn scaled_query(row: u32, chunk: u32, b: u32, scale: f32) -> vec4f {
%% if problem.rope is not none
    return scale * load_query_rotated(row, chunk, position_of(b, 0u));
%% else
    return scale * load_query(row, chunk);
%% endif
}

@compute @workgroup_size(SUBGROUP)
fn decode_lanes(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var index = folded_index(workgroup, workgroups);
    let group = min(parameters.N, parameters.G);
    let shares = (group + HEADS - 1u) / HEADS;
    let first_head = (index % shares) * HEADS;
    index /= shares;
    let k = index % (parameters.N / group);
    index /= parameters.N / group;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }

    let first_key = parameters.key_first + part * parameters.part_keys;
    let end_key = min(first_key + parameters.part_keys, parameters.key_end);
    // Every key of this range is below its sequence's length, and no other is read.
    let keys = block_keys(b, 0u, 0u, first_key, end_key);
    var kept = kept_keys(b, 0u);
%% if found or problem.empty_rows == "mean"
    let length = key_length(b);
%% endif
%% if not found
    // Keys that a turn takes past the last one are read again, and not kept.
    kept.end = min(kept.end, i32(keys.y));
%% if problem.keys.clauses | length > 1
    kept.also_end = min(kept.also_end, i32(keys.y));
%% endif
%% endif
    let scale = query_scale(b);

    let column = lane % LANES;
    let beside = lane / LANES;
    // Lanes past the row's end read its last texel again, and their products and sums are left out.
%% for d in range(key_reads)
    let key_column_{{ d }} = min(column + {{ d * SUBGROUP }}u, {{ key_texels - 1 }}u);
    let key_there_{{ d }} = column + {{ d * SUBGROUP }}u < {{ key_texels }}u;
%% if key_scaled
    let key_scale_{{ d }} = first_scale(k) + {{ "key_column_%s" | format(d) if blocks else "0u" }};
%% endif
%% endfor
%% for d in range(value_reads)
    let value_column_{{ d }} = min(column + {{ d * SUBGROUP }}u, {{ value_texels - 1 }}u);
%% if value_scaled
    let value_scale_{{ d }} = first_scale(k) + key_scales() + {{ "value_column_%s" | format(d) if blocks else "0u" }};
%% endif
%% endfor
%% for g in range(HEADS)
    let n_{{ g }} = k * group + min(first_head + {{ g }}u, group - 1u);
    let query_at_{{ g }} = query_row(b, 0u, n_{{ g }});
%% for d in range(key_reads)
%% for i in range(quads.key)
    let chunk_{{ g }}_{{ d }}_{{ i }} = {{ quads.key }}u * key_column_{{ d }} + {{ i }}u;
%% if key_open
    let in_row_{{ g }}_{{ d }}_{{ i }} = min(chunk_{{ g }}_{{ d }}_{{ i }}, {{ key_chunks - 1 }}u);
    let there_{{ g }}_{{ d }}_{{ i }} = key_there_{{ d }} && chunk_{{ g }}_{{ d }}_{{ i }} < {{ key_chunks }}u;
%% else
    let in_row_{{ g }}_{{ d }}_{{ i }} = chunk_{{ g }}_{{ d }}_{{ i }};
    let there_{{ g }}_{{ d }}_{{ i }} = key_there_{{ d }};
%% endif
    let read_{{ g }}_{{ d }}_{{ i }} = scaled_query(query_at_{{ g }}, in_row_{{ g }}_{{ d }}_{{ i }}, b, scale);
    let q_{{ g }}_{{ d }}_{{ i }} = select(vec4f(), read_{{ g }}_{{ d }}_{{ i }}, there_{{ g }}_{{ d }}_{{ i }});
%% endfor
%% endfor
%% for d in range(value_reads)
%% for i in range(quads.value)
    var sums_{{ g }}_{{ d }}_{{ i }} = vec4f();
%% endfor
%% endfor
%% endfor
    // The heads whose logits this lane owns, from own_head on.
    var own_head = 0u;
%% for step in owned.scatter
    let upper_{{ step }} = (lane & {{ step }}u) != 0u;
    own_head += select(0u, {{ owned.halves[loop.index0] }}u, upper_{{ step }});
%% endfor
%% for o in range(owned.count)
    let own_n_{{ o }} = k * group + min(first_head + own_head + {{ o }}u, group - 1u);
    // Above MASKED, so that the weight of a masked key is 0 from the first turn on.
    var top_{{ o }} = LOWEST_KEPT;
    var total_{{ o }} = 0.0;
%% endfor

%% for name in stored_names
    let {{ name }}_lie = {{ name }}_keys(b, k);
%% endfor

    // A page after another, each looked up once, and passed by where it is none; without pages all keys are one.
    for (var first = keys.x; first < keys.y; first = page_end(first, keys.y)) {
        let page = find_page(b, first);
        let end = select(first, page_end(first, keys.y), page.there);
        for (var s = first; s < end; s += TURN * BESIDE) {
%% if problem.segments
            // Keys of other segments are passed by; the last one is worked on in any case.
            for (; s + 1u < end && !same_segment(b, 0u, s); s++) {
            }
%% endif
%% for j in range(TURN)
            let index_{{ j }} = s + {{ j }}u * BESIDE + beside;
            let s_{{ j }} = min(index_{{ j }}, end - 1u);
%% if found
            let found_{{ j }} = find_key(s_{{ j }}, page, length);
            let slot_{{ j }} = found_{{ j }}.slot;
            let position_{{ j }} = select(NOWHERE, found_{{ j }}.position, index_{{ j }} < end);
%% else
            let slot_{{ j }} = s_{{ j }};
            let position_{{ j }} = i32(index_{{ j }});
%% endif
%% for name in stored_names
            let {{ name }}_at_{{ j }} = key_texels({{ name }}_lie, s_{{ j }}, slot_{{ j }});
%% endfor
%% for d in range(key_reads)
            let key_{{ j }}_{{ d }} = textureLoad(key, vec2u(key_at_{{ j }}.x + key_column_{{ d }}, key_at_{{ j }}.y));
%% for i in range(quads.key)
            let k_{{ j }}_{{ d }}_{{ i }} = {{ texels.four("key_%s_%s" | format(j, d), key_texel, i) }};
%% endfor
%% if key_scaled
            let key_scale_{{ j }}_{{ d }} = scale_at(scales_at_{{ j }}, key_scale_{{ d }});
%% endif
%% endfor
%% if problem.segments
            let same_{{ j }} = same_segment(b, 0u, s_{{ j }});
%% endif
%% for g in range(HEADS)
            var sum_{{ g }}_{{ j }} = 0.0;
%% for d in range(key_reads)
            var product_{{ g }}_{{ j }}_{{ d }} = dot(q_{{ g }}_{{ d }}_0, k_{{ j }}_{{ d }}_0);
%% for i in range(1, quads.key)
            product_{{ g }}_{{ j }}_{{ d }} += dot(q_{{ g }}_{{ d }}_{{ i }}, k_{{ j }}_{{ d }}_{{ i }});
%% endfor
%% if key_scaled
            sum_{{ g }}_{{ j }} += key_scale_{{ j }}_{{ d }} * product_{{ g }}_{{ j }}_{{ d }};
%% else
            sum_{{ g }}_{{ j }} += product_{{ g }}_{{ j }}_{{ d }};
%% endif
%% endfor
%% endfor
{% set held = namespace(names=[]) %}
%% for g in range(owned.padded)
{% set held.names = held.names + ["sum_%s_%s" | format(g, j) if g < HEADS else "0.0"] %}
%% endfor
%% for step in owned.scatter
{% set half, given = held.names | length // 2, held.names %}
{% set held.names = [] %}
%% for o in range(half)
{% set low, high, made = given[o], given[o + half], "sum_%s_%s_by_%s" | format(o, j, step) %}
            let {{ made }} = select({{ low }}, {{ high }}, upper_{{ step }})
                + subgroupShuffleXor(select({{ high }}, {{ low }}, upper_{{ step }}), {{ step }}u);
{% set held.names = held.names + [made] %}
%% endfor
%% endfor
%% for o in range(owned.count)
            var own_{{ o }}_{{ j }} = {{ held.names[o] }};
%% for step in owned.plain
            own_{{ o }}_{{ j }} += subgroupShuffleXor(own_{{ o }}_{{ j }}, {{ step }}u);
%% endfor
            let logit_{{ o }}_{{ j }} =
                logit_at(own_{{ o }}_{{ j }}, b, own_n_{{ o }}, 0u, index_{{ j }}, position_{{ j }}, kept);
%% if problem.segments
            let x_{{ o }}_{{ j }} = select(MASKED, logit_{{ o }}_{{ j }}, same_{{ j }});
%% else
            let x_{{ o }}_{{ j }} = logit_{{ o }}_{{ j }};
%% endif
%% endfor
%% endfor
%% for o in range(owned.count)
            var high_{{ o }} = top_{{ o }};
%% for j in range(TURN)
            high_{{ o }} = max(high_{{ o }}, x_{{ o }}_{{ j }});
%% endfor
            let own_fade_{{ o }} = decay(top_{{ o }}, high_{{ o }});
            top_{{ o }} = high_{{ o }};
            total_{{ o }} *= own_fade_{{ o }};
%% for j in range(TURN)
            let own_p_{{ o }}_{{ j }} = decay(x_{{ o }}_{{ j }}, high_{{ o }});
            total_{{ o }} += own_p_{{ o }}_{{ j }};
%% endfor
%% endfor
%% for g in range(HEADS)
{% set o, at = owned.places[g] %}
            let fade_{{ g }} = {{ of_lane("own_fade_%s" | format(o), at) }};
%% for j in range(TURN)
            let p_{{ g }}_{{ j }} = {{ of_lane("own_p_%s_%s" | format(o, j), at) }};
%% endfor
%% endfor
%% for d in range(value_reads)
%% for j in range(TURN)
            let value_{{ j }}_{{ d }} = textureLoad(value, vec2u(value_at_{{ j }}.x + value_column_{{ d }}, value_at_{{ j }}.y));
%% for i in range(quads.value)
            let v_{{ j }}_{{ d }}_{{ i }} = {{ texels.four("value_%s_%s" | format(j, d), value_texel, i) }};
%% endfor
%% if value_scaled
            let value_scale_{{ j }}_{{ d }} = scale_at(scales_at_{{ j }}, value_scale_{{ d }});
%% endif
%% endfor
%% for g in range(HEADS)
%% for j in range(TURN)
%% if value_scaled
            let w_{{ g }}_{{ j }}_{{ d }} = p_{{ g }}_{{ j }} * value_scale_{{ j }}_{{ d }};
%% else
            let w_{{ g }}_{{ j }}_{{ d }} = p_{{ g }}_{{ j }};
%% endif
%% endfor
%% for i in range(quads.value)
            sums_{{ g }}_{{ d }}_{{ i }} = sums_{{ g }}_{{ d }}_{{ i }} * fade_{{ g }}
%% for j in range(TURN)
                + w_{{ g }}_{{ j }}_{{ d }} * v_{{ j }}_{{ d }}_{{ i }}{{ ";" if loop.last }}
%% endfor
%% endfor
%% endfor
%% endfor
        }
    }

%% for step in join_steps
%% for o in range(owned.count)
    let high_{{ o }}_{{ step }} = max(top_{{ o }}, subgroupShuffleXor(top_{{ o }}, {{ step }}u));
    let own_fade_{{ o }}_{{ step }} = decay(top_{{ o }}, high_{{ o }}_{{ step }});
    top_{{ o }} = high_{{ o }}_{{ step }};
    total_{{ o }} *= own_fade_{{ o }}_{{ step }};
    total_{{ o }} += subgroupShuffleXor(total_{{ o }}, {{ step }}u);
%% endfor
%% for g in range(HEADS)
{% set o, at = owned.places[g] %}
    let fade_{{ g }}_{{ step }} = {{ of_lane("own_fade_%s_%s" | format(o, step), at) }};
%% for d in range(value_reads)
%% for i in range(quads.value)
    sums_{{ g }}_{{ d }}_{{ i }} *= fade_{{ g }}_{{ step }};
    sums_{{ g }}_{{ d }}_{{ i }} += subgroupShuffleXor(sums_{{ g }}_{{ d }}_{{ i }}, {{ step }}u);
%% endfor
%% endfor
%% endfor
%% endfor
%% for o in range(owned.count)
%% if not PARTIAL
    let own_end_{{ o }} = row_end(top_{{ o }}, total_{{ o }}, b, 0u, own_n_{{ o }});
    let own_zero_{{ o }} = select(0u, 1u, own_end_{{ o }}.zero);
%% endif
%% if problem.empty_rows == "mean"
%% if not PARTIAL
    let own_empty_{{ o }} = select(0u, 1u, own_end_{{ o }}.empty);
%% elif problem.dense
    let own_empty_{{ o }} = select(0u, 1u, total_{{ o }} == 0.0);
%% else
    let own_empty_{{ o }} = select(0u, 1u, total_{{ o }} == 0.0 && range_is_empty(kept));
%% endif
%% endif
%% endfor
%% for g in range(HEADS)
{% set o, at = owned.places[g] %}
%% if not PARTIAL
    let factor_{{ g }} = subgroupShuffle(own_end_{{ o }}.factor, {{ at }}u);
    let zero_{{ g }} = subgroupShuffle(own_zero_{{ o }}, {{ at }}u) != 0u;
%% endif
%% if problem.empty_rows == "mean"
    let empty_{{ g }} = subgroupShuffle(own_empty_{{ o }}, {{ at }}u) != 0u;
%% endif
%% endfor
%% if problem.empty_rows == "mean"
    // A row that keeps no key is the mean of V. The loop makes no turn where no row needs it; a branch would run
    // masked.
    let any_empty = {% for g in range(HEADS) %}empty_{{ g }}{{ " || " if not loop.last }}{% endfor %};
    let end_mean = select(first_key, end_key, any_empty);
%% for d in range(value_reads)
%% for i in range(quads.value)
    var mean_{{ d }}_{{ i }} = vec4f();
%% endfor
%% endfor
    for (var s = first_key; s < end_mean; s++) {
        let slot = find_key(s, find_page(b, s), length).slot;
        let at = key_texels(value_lie, s, slot);
%% if value_scaled
        let scales_at = key_texels(scales_lie, s, slot);
%% endif
%% for d in range(value_reads)
        let texel_{{ d }} = textureLoad(value, vec2u(at.x + value_column_{{ d }}, at.y));
%% if value_scaled
        let factor_{{ d }} = scale_at(scales_at, value_scale_{{ d }});
%% else
        let factor_{{ d }} = 1.0;
%% endif
%% for i in range(quads.value)
        mean_{{ d }}_{{ i }} += factor_{{ d }} * {{ texels.four("texel_%s" | format(d), value_texel, i) }};
%% endfor
%% endfor
    }

%% endif
%% for g in range(HEADS)
    if (first_head + {{ g }}u < group) {
{% set at = "partial_row(part, b, 0u, n_%s)" % g if PARTIAL else "out_row(b, 0u, n_%s)" % g %}
        let at_{{ g }} = {{ at }};
%% for d in range(value_reads)
        if (lane + {{ d * SUBGROUP }}u < {{ value_texels }}u) {
%% for i in range(quads.value)
            let chunk_{{ i }} = {{ quads.value }}u * value_column_{{ d }} + {{ i }}u;
%% if PARTIAL
            let four_{{ i }} = sums_{{ g }}_{{ d }}_{{ i }};
%% else
            let scaled_{{ i }} = sums_{{ g }}_{{ d }}_{{ i }} * factor_{{ g }};
            let four_{{ i }} = select(scaled_{{ i }}, vec4f(), zero_{{ g }});
%% endif
%% if problem.empty_rows == "mean"
            let mean_of_row_{{ i }} = mean_{{ d }}_{{ i }}{{ "" if PARTIAL else " / f32(parameters.S)" }};
            let found_{{ i }} = select(four_{{ i }}, mean_of_row_{{ i }}, empty_{{ g }});
%% else
            let found_{{ i }} = four_{{ i }};
%% endif
%% if PARTIAL and value_open
            if (chunk_{{ i }} < {{ value_chunks }}u) {
                partial[at_{{ g }} + chunk_{{ i }}] = found_{{ i }};
            }
%% elif PARTIAL
            partial[at_{{ g }} + chunk_{{ i }}] = found_{{ i }};
%% else
            store_out(at_{{ g }}, chunk_{{ i }}, found_{{ i }});
%% endif
%% endfor
        }
%% endfor
    }
%% endfor
    // Of the lanes that own a head, the first ends its row.
%% for o in range(owned.count)
    let there_{{ o }} = first_head + own_head + {{ o }}u < min(first_head + HEADS, group);
    if (there_{{ o }} && (lane & {{ SUBGROUP - 1 - owned.scatter | sum }}u) == 0u) {
        finish_row(part, b, 0u, own_n_{{ o }}, top_{{ o }}, total_{{ o }});
    }
%% endfor
}
