{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Plain: a workgroup owns one query row of one head. Scores: a thread a key. Output: a thread a chunk of four elements
// of value_dim. It asks nothing of the device and takes any head dim; no key is reused between rows.

// WORKGROUP · 4 bytes
var<workgroup> weights: array<f32, WORKGROUP>;
// WORKGROUP · 4 bytes
var<workgroup> scratch: array<f32, WORKGROUP>;

fn workgroup_max(thread: u32, value: f32) -> f32 {
    scratch[thread] = value;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            scratch[thread] = max(scratch[thread], scratch[thread + half]);
        }
    }
    workgroupBarrier();
    let highest = scratch[0];
    workgroupBarrier();
    return highest;
}

fn workgroup_sum(thread: u32, value: f32) -> f32 {
    scratch[thread] = value;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            scratch[thread] += scratch[thread + half];
        }
    }
    workgroupBarrier();
    let sum = scratch[0];
    workgroupBarrier();
    return sum;
}

fn product(q_row: u32, b: u32, t: u32, s: u32, k: u32) -> f32 {
    let k_row = key_row(b, key_slot(b, s), k);
    var sum = vec4f();
    for (var chunk = 0u; chunk < (parameters.H + 3u) / 4u; chunk++) {
%% if problem.rope is not none
        sum += load_query_rotated(q_row, chunk, position_of(b, t)) * load_key_rotated(k_row, chunk, key_position(b, s));
%% else
        sum += load_query(q_row, chunk) * load_key(k_row, chunk);
%% endif
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

@compute @workgroup_size(WORKGROUP)
fn plain(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    var index = folded_index(workgroup, workgroups);
    let n = index % parameters.N;
    index /= parameters.N;
    let t = index % parameters.T;
    index /= parameters.T;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }

    let k = key_head(n);
    let q_row = query_row(b, t, n);
    let kept = kept_keys(b, t);
    let first = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, t, t, first, min(first + parameters.part_keys, parameters.key_end));

    var top = MASKED;
    var total = 0.0;
    var sums: array<vec4f, CHUNKS>;
    for (var tile = keys.x; tile < keys.y; tile += WORKGROUP) {
        let s = tile + thread;
        var x = MASKED;
%% if problem.segments
        let read = s < keys.y && same_segment(b, t, min(s, keys.y - 1u));
%% else
        let read = s < keys.y;
%% endif
        if (read) {
            let scaled = product(q_row, b, t, s, k) * query_scale(b);
            x = logit(scaled, b, n, t, s, kept);
        }
        let new_top = max(top, workgroup_max(thread, x));
        let w = weight(x, new_top);
        weights[thread] = w;
        let fade = decay(top, new_top);
        total = total * fade + workgroup_sum(thread, w);
        top = new_top;
        for (var i = 0u; i < CHUNKS; i++) {
            sums[i] *= fade;
        }
        for (var j = 0u; j < min(WORKGROUP, keys.y - tile); j++) {
            let share = weights[j];
            // A masked key's V is not read, so nothing of it can reach the row.
            if (share != 0.0) {
                let v_row = value_row(b, key_slot(b, tile + j), k);
                for (var i = 0u; i < CHUNKS; i++) {
                    sums[i] += share * load_value(v_row, thread + i * WORKGROUP);
                }
            }
        }
        workgroupBarrier();
    }

    for (var i = 0u; i < CHUNKS; i++) {
        let chunk = thread + i * WORKGROUP;
        if (chunk < VALUE_DIM / 4u) {
            var all_values = vec4f();
%% if problem.empty_rows == "mean"
            if (ends_as_mean(b, t, total)) {
                all_values = sum_for_mean(part, b, k, chunk);
            }
%% endif
            finish_chunk(part, b, t, n, top, total, chunk, sums[i], all_values);
        }
    }
    if (thread == 0u) {
        finish_row(part, b, t, n, top, total);
    }
}
