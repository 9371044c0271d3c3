{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Decode: one query row against many keys. A workgroup owns one key/value head, up to HEADS of the query heads that
// read it, and one part of the keys, so that each key and value is read once for the group. Logits: a thread a key
// (KEYS of them), q broadcast from workgroup memory. Output: VALUE_CHUNKS threads a key, each four elements, ROWS keys
// at once. Over heads and keys the text is unrolled: arrays of them would live in memory.
{% set heads = range(HEADS) %}
{% set quads = range(HEAD_QUADS) %}

// HEADS · HEAD_CHUNKS · 16 bytes
var<workgroup> query_rows: array<vec4f, HEADS * HEAD_CHUNKS>;
// TILE_K · HEAD_QUADS · 16 bytes
var<workgroup> weights: array<vec4f, TILE_K * HEAD_QUADS>;
// HEADS · PITCH · 4 bytes: a number a head and thread, to be reduced over the threads
var<workgroup> scattered: array<f32, HEADS * PITCH>;
// HEADS · GATHERED · 4 bytes: the same, reduced to GATHERED a head
var<workgroup> gathered: array<f32, HEADS * GATHERED>;
// WORKGROUP · 16 bytes
var<workgroup> row_sums: array<vec4f, WORKGROUP>;

fn gather_maxima(thread: u32) {
    workgroupBarrier();
    if (thread < HEADS * GATHERED) {
        let at = thread / GATHERED * PITCH + thread % GATHERED;
        var high = scattered[at];
        for (var i = GATHERED; i < WORKGROUP; i += GATHERED) {
            high = max(high, scattered[at + i]);
        }
        gathered[thread] = high;
    }
    workgroupBarrier();
}

fn gathered_max(head: u32) -> f32 {
    var high = gathered[head * GATHERED];
    for (var i = 1u; i < GATHERED; i++) {
        high = max(high, gathered[head * GATHERED + i]);
    }
    return high;
}

fn gather_sums(thread: u32) {
    workgroupBarrier();
    if (thread < HEADS * GATHERED) {
        let at = thread / GATHERED * PITCH + thread % GATHERED;
        var sum = scattered[at];
        for (var i = GATHERED; i < WORKGROUP; i += GATHERED) {
            sum += scattered[at + i];
        }
        gathered[thread] = sum;
    }
    workgroupBarrier();
}

fn gathered_sum(head: u32) -> f32 {
    var sum = gathered[head * GATHERED];
    for (var i = 1u; i < GATHERED; i++) {
        sum += gathered[head * GATHERED + i];
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP)
fn decode(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/decode_place.wgsl" %}

    let scale = query_scale(b);
    for (var i = thread; i < HEADS * HEAD_CHUNKS; i += WORKGROUP) {
        let n = n_first + i / HEAD_CHUNKS;
        var four = vec4f();
        if (n <= n_last) {
%% if problem.rope is not none
            four = scale * load_query_rotated(query_row(b, 0u, n), i % HEAD_CHUNKS, position_of(b, 0u));
%% else
            four = scale * load_query(query_row(b, 0u, n), i % HEAD_CHUNKS);
%% endif
        }
        query_rows[i] = four;
    }
    workgroupBarrier();

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
    let lane = thread % VALUE_CHUNKS;
    let row = thread / VALUE_CHUNKS;
%% for g in heads
    var top_{{ g }} = MASKED;
    var total_{{ g }} = 0.0;
    var sum_{{ g }} = vec4f();
%% endfor

    for (var tile = keys.x; tile < keys.y; tile += TILE_K) {
%% for i in range(KEYS)
        let s_{{ i }} = tile + {{ i }}u * WORKGROUP + thread;
%% if problem.segments
        let read_{{ i }} = s_{{ i }} < keys.y && same_segment(b, 0u, min(s_{{ i }}, keys.y - 1u));
%% else
        let read_{{ i }} = s_{{ i }} < keys.y;
%% endif
%% for g in heads
        var x_{{ i }}_{{ g }} = 0.0;
%% endfor
%% endfor
        if ({% for i in range(KEYS) %}{{ " || " if i else "" }}read_{{ i }}{% endfor %}) {
%% for i in range(KEYS)
            let key_{{ i }} = min(s_{{ i }}, keys.y - 1u);
            let k_row_{{ i }} = key_row_of(k_rows, b, key_slot(b, key_{{ i }}), k);
%% endfor
            for (var chunk = 0u; chunk < HEAD_CHUNKS; chunk += {{ TURN }}u) {
%% for c in range(TURN)
%% for i in range(KEYS)
%% if problem.rope is not none
                let k_{{ i }}_{{ c }} = load_key_rotated(k_row_{{ i }}, chunk + {{ c }}u, key_position(b, key_{{ i }}));
%% else
                let k_{{ i }}_{{ c }} = load_key(k_row_{{ i }}, chunk + {{ c }}u);
%% endif
%% endfor
%% endfor
%% for c in range(TURN)
%% for g in heads
                let q_{{ g }}_{{ c }} = query_rows[{{ g }}u * HEAD_CHUNKS + chunk + {{ c }}u];
%% for i in range(KEYS)
                x_{{ i }}_{{ g }} = add_dot(x_{{ i }}_{{ g }}, q_{{ g }}_{{ c }}, k_{{ i }}_{{ c }});
%% endfor
%% endfor
%% endfor
            }
        }
%% for g in heads
%% for i in range(KEYS)
        if (read_{{ i }}) {
            x_{{ i }}_{{ g }} = logit(x_{{ i }}_{{ g }}, b, min(n_first + {{ g }}u, n_last), 0u, s_{{ i }}, kept);
        } else {
            x_{{ i }}_{{ g }} = MASKED;
        }
%% endfor
        var high_{{ g }} = x_0_{{ g }};
%% for i in range(1, KEYS)
        high_{{ g }} = max(high_{{ g }}, x_{{ i }}_{{ g }});
%% endfor
        scattered[{{ g }}u * PITCH + thread] = high_{{ g }};
%% endfor
        gather_maxima(thread);

%% for g in heads
        let new_top_{{ g }} = max(top_{{ g }}, gathered_max({{ g }}u));
        let fade_{{ g }} = decay(top_{{ g }}, new_top_{{ g }});
        top_{{ g }} = new_top_{{ g }};
        total_{{ g }} *= fade_{{ g }};
        sum_{{ g }} *= fade_{{ g }};
%% for i in range(KEYS)
        let w_{{ i }}_{{ g }} = weight(x_{{ i }}_{{ g }}, new_top_{{ g }});
        total_{{ g }} += w_{{ i }}_{{ g }};
%% endfor
%% endfor
%% for i in range(KEYS)
%% for q in quads
        weights[({{ i }}u * WORKGROUP + thread) * HEAD_QUADS + {{ q }}u] = vec4f(
            {% for g in range(4 * q, 4 * q + 4) %}{{ "w_%d_%d" % (i, g) if g < HEADS else "0.0" }}{{ ", " if not loop.last }}{% endfor %}

        );
%% endfor
%% endfor
        workgroupBarrier();

        // The next tile's maxima are gathered behind a barrier, so these weights are read before they are overwritten.
        if (row < ROWS) {
            let live = min(TILE_K, keys.y - tile);
            for (var first = row; first < live; first += {{ TURN }}u * ROWS) {
%% for u in range(TURN)
                let j_{{ u }} = first + {{ u }}u * ROWS;
%% for q in quads
                let share_{{ u }}_{{ q }} = weights[min(j_{{ u }}, TILE_K - 1u) * HEAD_QUADS + {{ q }}u];
%% endfor
                var v_{{ u }} = vec4f();
%% if problem.dense
                // A key that no head keeps is not read.
                if (j_{{ u }} < live && key_there(b, tile + j_{{ u }}) && ({% for q in quads %}{{ " || " if q else "" }}any(share_{{ u }}_{{ q }} != vec4f()){% endfor %})) {
%% else
                if (j_{{ u }} < live && key_there(b, tile + j_{{ u }})) {
%% endif
                    v_{{ u }} = load_value(value_row_of(v_rows, b, key_slot(b, tile + j_{{ u }}), k), lane);
                }
%% endfor
%% for u in range(TURN)
%% for g in heads
                sum_{{ g }} += share_{{ u }}_{{ g // 4 }}.{{ "xyzw"[g % 4] }} * v_{{ u }};
%% endfor
%% endfor
            }
        }
    }

%% for g in heads
    scattered[{{ g }}u * PITCH + thread] = total_{{ g }};
%% endfor
    gather_sums(thread);
%% for g in heads
    total_{{ g }} = gathered_sum({{ g }}u);
%% endfor
    var all_values = vec4f();
%% if problem.empty_rows == "mean"
    if (row == 0u && ({% for g in heads %}{{ " || " if g else "" }}ends_as_mean(b, 0u, total_{{ g }}){% endfor %})) {
        all_values = sum_for_mean(part, b, k, lane);
    }
%% endif
%% for g in heads
    row_sums[thread] = sum_{{ g }};
    workgroupBarrier();
    if (row == 0u && n_first + {{ g }}u <= n_last) {
        var sum = row_sums[lane];
        for (var r = 1u; r < ROWS; r++) {
            sum += row_sums[r * VALUE_CHUNKS + lane];
        }
        finish_chunk(part, b, 0u, n_first + {{ g }}u, top_{{ g }}, total_{{ g }}, lane, sum, all_values);
        if (thread == 0u) {
            finish_row(part, b, 0u, n_first + {{ g }}u, top_{{ g }}, total_{{ g }});
        }
    }
    workgroupBarrier();
%% endfor
}
