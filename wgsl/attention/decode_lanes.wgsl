{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/texels.wgsl" as texels %}
{% set quads = namespace(key=1 if key_texel == "f32" else 2, value=1 if value_texel == "f32" else 2) %}
{% set key_texels, value_texels = HEAD_DIM // 4 // quads.key, VALUE_DIM // 4 // quads.value %}
{% set key_reads, value_reads = (key_texels + SUBGROUP - 1) // SUBGROUP, (value_texels + SUBGROUP - 1) // SUBGROUP %}

// Decode, head dims in lanes, for CPU adapters: a subgroup owns one key/value head, HEADS query heads of its group and
// one part of its keys. A lane holds a texel of dims of the query rows and of their sums, and a turn takes one key: one
// read of it serves all heads, and lanes add their products by shuffles. The body is small on purpose: with eight keys
// unrolled it waits for its own instructions.

{{ texels.place("key") }}
{{ texels.place("value") }}
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
    let kept = kept_keys(b, 0u);
    let scale = query_scale(b);

    // Lanes past the row's end read its last texel again, and their products and sums are left out.
%% for d in range(key_reads)
    let key_column_{{ d }} = min(lane + {{ d * SUBGROUP }}u, {{ key_texels - 1 }}u);
    let key_there_{{ d }} = lane + {{ d * SUBGROUP }}u < {{ key_texels }}u;
%% endfor
%% for d in range(value_reads)
    let value_column_{{ d }} = min(lane + {{ d * SUBGROUP }}u, {{ value_texels - 1 }}u);
%% endfor
%% for g in range(HEADS)
    let n_{{ g }} = k * group + min(first_head + {{ g }}u, group - 1u);
    let query_at_{{ g }} = query_row(b, 0u, n_{{ g }});
%% for d in range(key_reads)
%% for i in range(quads.key)
    let chunk_{{ g }}_{{ d }}_{{ i }} = {{ quads.key }}u * key_column_{{ d }} + {{ i }}u;
    let read_{{ g }}_{{ d }}_{{ i }} = scaled_query(query_at_{{ g }}, chunk_{{ g }}_{{ d }}_{{ i }}, b, scale);
    let q_{{ g }}_{{ d }}_{{ i }} = select(vec4f(), read_{{ g }}_{{ d }}_{{ i }}, key_there_{{ d }});
%% endfor
%% endfor
    // Above MASKED, so that the weight of a masked key is 0 from the first turn on.
    var top_{{ g }} = LOWEST_KEPT;
    var total_{{ g }} = 0.0;
%% for d in range(value_reads)
%% for i in range(quads.value)
    var sum_{{ g }}_{{ d }}_{{ i }} = vec4f();
%% endfor
%% endfor
%% endfor

    for (var s = keys.x; s < keys.y; s++) {
%% if problem.segments
        // Keys of other segments are passed by; the last key is worked on in any case.
        for (; s + 1u < keys.y && !same_segment(b, 0u, s); s++) {
        }
        let same = same_segment(b, 0u, s);
%% endif
        let key_at = key_place(b, s - parameters.key_first, k);
        let value_at = value_place(b, s - parameters.key_first, k);
%% for d in range(key_reads)
        let key_{{ d }} = textureLoad(key, vec2u(key_at.x + key_column_{{ d }}, key_at.y));
%% endfor
%% for d in range(value_reads)
        let value_{{ d }} = textureLoad(value, vec2u(value_at.x + value_column_{{ d }}, value_at.y));
%% endfor
%% for d in range(key_reads)
%% for i in range(quads.key)
        let k_{{ d }}_{{ i }} = {{ texels.four("key_%s" | format(d), key_texel, i) }};
%% endfor
%% endfor
%% for d in range(value_reads)
%% for i in range(quads.value)
        let v_{{ d }}_{{ i }} = {{ texels.four("value_%s" | format(d), value_texel, i) }};
%% endfor
%% endfor
%% for g in range(HEADS)
        var s_{{ g }} = dot(q_{{ g }}_0_0, k_0_0);
%% for d in range(key_reads)
%% for i in range(quads.key)
%% if d or i
        s_{{ g }} += dot(q_{{ g }}_{{ d }}_{{ i }}, k_{{ d }}_{{ i }});
%% endif
%% endfor
%% endfor
%% for step in xor_steps
        s_{{ g }} += subgroupShuffleXor(s_{{ g }}, {{ step }}u);
%% endfor
%% if problem.segments
        let x_{{ g }} = select(MASKED, logit(s_{{ g }}, b, n_{{ g }}, 0u, s, kept), same);
%% else
        let x_{{ g }} = logit(s_{{ g }}, b, n_{{ g }}, 0u, s, kept);
%% endif
        let high_{{ g }} = max(top_{{ g }}, x_{{ g }});
        let fade_{{ g }} = decay(top_{{ g }}, high_{{ g }});
        let p_{{ g }} = decay(x_{{ g }}, high_{{ g }});
        top_{{ g }} = high_{{ g }};
        total_{{ g }} = total_{{ g }} * fade_{{ g }} + p_{{ g }};
%% for d in range(value_reads)
%% for i in range(quads.value)
        sum_{{ g }}_{{ d }}_{{ i }} = sum_{{ g }}_{{ d }}_{{ i }} * fade_{{ g }} + p_{{ g }} * v_{{ d }}_{{ i }};
%% endfor
%% endfor
%% endfor
    }

%% for g in range(HEADS)
%% if not PARTIAL
    let end_{{ g }} = row_end(top_{{ g }}, total_{{ g }}, b, 0u, n_{{ g }});
%% endif
%% if problem.empty_rows == "mean"
%% if not PARTIAL
    let empty_{{ g }} = end_{{ g }}.empty;
%% elif problem.dense
    let empty_{{ g }} = total_{{ g }} == 0.0;
%% else
    let empty_{{ g }} = total_{{ g }} == 0.0 && range_is_empty(kept);
%% endif
%% endif
%% endfor
%% if problem.empty_rows == "mean"
    // A row that keeps no key is the mean of V. The loop makes no turn where no row needs it; a branch would run masked.
    let any_empty = {% for g in range(HEADS) %}empty_{{ g }}{{ " || " if not loop.last }}{% endfor %};
    let end_mean = select(first_key, end_key, any_empty);
%% for d in range(value_reads)
%% for i in range(quads.value)
    var mean_{{ d }}_{{ i }} = vec4f();
%% endfor
%% endfor
    for (var s = first_key; s < end_mean; s++) {
        let at = value_place(b, s - parameters.key_first, k);
%% for d in range(value_reads)
        let texel_{{ d }} = textureLoad(value, vec2u(at.x + value_column_{{ d }}, at.y));
%% for i in range(quads.value)
        mean_{{ d }}_{{ i }} += {{ texels.four("texel_%s" | format(d), value_texel, i) }};
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
            let four_{{ i }} = sum_{{ g }}_{{ d }}_{{ i }};
%% else
            let scaled_{{ i }} = sum_{{ g }}_{{ d }}_{{ i }} * end_{{ g }}.factor;
            let four_{{ i }} = select(scaled_{{ i }}, vec4f(), end_{{ g }}.zero);
%% endif
%% if problem.empty_rows == "mean"
            let mean_of_row_{{ i }} = mean_{{ d }}_{{ i }}{{ "" if PARTIAL else " / f32(parameters.S)" }};
            let found_{{ i }} = select(four_{{ i }}, mean_of_row_{{ i }}, empty_{{ g }});
%% else
            let found_{{ i }} = four_{{ i }};
%% endif
%% if PARTIAL
            partial[at_{{ g }} + chunk_{{ i }}] = found_{{ i }};
%% else
            store_out(at_{{ g }}, chunk_{{ i }}, found_{{ i }});
%% endif
%% endfor
        }
%% endfor
        if (lane == 0u) {
            finish_row(part, b, 0u, n_{{ g }}, top_{{ g }}, total_{{ g }});
        }
    }
%% endfor
}
