{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Decode: one query row against many keys. A workgroup owns one key/value head, up to GROUP of the query heads that read it, and one part of the
// keys, so that each key and value is read once for the group. Logits: LANES threads a key, each with its elements of q in registers; their products
// are joined through workgroup memory. Weights: a thread a key. Output: VALUE_CHUNKS threads a key, each four elements, ROWS keys at once.
// Over heads and keys the text is unrolled: arrays of them would live in memory.
{% macro four_heads(word, q) -%}
vec4f({% for g in range(4 * q, 4 * q + 4) %}{{ "%s_%d" % (word, g) if g < GROUP else "0.0" }}{{ ", " if not loop.last }}{% endfor %})
{%- endmacro %}
{% set heads = range(GROUP) %}
{% set quads = range(GROUP_QUADS) %}

// WORKGROUP · PRODUCT_PITCH · 16 bytes: for each key and lane the products of its elements, four heads a vec4
var<workgroup> products: array<vec4f, WORKGROUP * PRODUCT_PITCH>;
// WORKGROUP · GROUP_QUADS · 16 bytes: for each key the weights, four heads a vec4
var<workgroup> weights: array<vec4f, WORKGROUP * GROUP_QUADS>;
// GROUP · PITCH · 4 bytes: a number a head and thread, to be reduced over the threads
var<workgroup> scattered: array<f32, GROUP * PITCH>;
// GROUP · GATHERED · 4 bytes: the same, reduced to GATHERED a head
var<workgroup> gathered: array<f32, GROUP * GATHERED>;
// WORKGROUP · 16 bytes
var<workgroup> row_sums: array<vec4f, WORKGROUP>;

fn gather_maxima(thread: u32) {
    workgroupBarrier();
    if (thread < GROUP * GATHERED) {
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
    if (thread < GROUP * GATHERED) {
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

%% if problem.segments
fn same_segment(b: u32, s: u32) -> bool {
    return row_query_segments(b, parameters.t_first) == row_key_segments(b, s);
}

%% endif
@compute @workgroup_size(WORKGROUP)
fn decode(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    // Key/value heads lie closest, since their rows do.
    let head_blocks = (parameters.G + GROUP - 1u) / GROUP;
    var index = folded_index(workgroup, workgroups);
    let units = parameters.N / parameters.G * head_blocks;
    let unit = index % units;
    index /= units;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }
    let n_first = unit / head_blocks * parameters.G + unit % head_blocks * GROUP;
    let n_last = min(n_first + GROUP, (unit / head_blocks + 1u) * parameters.G) - 1u;
    let k = key_head(n_first);

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    let k_rows = key_row(b, 0u, k);
    let v_rows = value_row(b, 0u, k);
    let lane = thread % VALUE_CHUNKS;
    let row = thread / VALUE_CHUNKS;
    let key_lane = thread % LANES;
    let key_first = thread / LANES;
    let scale = query_scale(b);
%% for g in heads
    let q_row_{{ g }} = query_row(b, 0u, min(n_first + {{ g }}u, n_last));
%% for c in range(LANE_CHUNKS)
%% if problem.rope is not none
    let q_{{ g }}_{{ c }} = scale * load_query_rotated(q_row_{{ g }}, {{ c }}u * LANES + key_lane, position_of(b, 0u));
%% else
    let q_{{ g }}_{{ c }} = scale * load_query(q_row_{{ g }}, {{ c }}u * LANES + key_lane);
%% endif
%% endfor
%% endfor
%% for g in heads
    var top_{{ g }} = MASKED;
    var total_{{ g }} = 0.0;
    var sum_{{ g }} = vec4f();
%% endfor

    for (var tile = keys.x; tile < keys.y; tile += WORKGROUP) {
        for (var j = key_first; j < WORKGROUP; j += {{ KEY_TURN }}u * KEYS_AT_ONCE) {
%% for u in range(KEY_TURN)
            let j_{{ u }} = j + {{ u }}u * KEYS_AT_ONCE;
            let s_{{ u }} = tile + j_{{ u }};
%% for c in range(LANE_CHUNKS)
            var k_{{ u }}_{{ c }} = vec4f();
%% endfor
%% if problem.segments
            if (s_{{ u }} < keys.y && same_segment(b, s_{{ u }})) {
%% else
            if (s_{{ u }} < keys.y) {
%% endif
                let k_row = k_rows + (s_{{ u }} - parameters.key_first) * parameters.key_s;
%% for c in range(LANE_CHUNKS)
%% if problem.rope is not none
                k_{{ u }}_{{ c }} = load_key_rotated(k_row, {{ c }}u * LANES + key_lane, i32(s_{{ u }}));
%% else
                k_{{ u }}_{{ c }} = load_key(k_row, {{ c }}u * LANES + key_lane);
%% endif
%% endfor
            }
%% endfor
%% for u in range(KEY_TURN)
%% for g in heads
            var x_{{ u }}_{{ g }} = dot(q_{{ g }}_0, k_{{ u }}_0);
%% for c in range(1, LANE_CHUNKS)
            x_{{ u }}_{{ g }} = add_dot(x_{{ u }}_{{ g }}, q_{{ g }}_{{ c }}, k_{{ u }}_{{ c }});
%% endfor
%% endfor
%% for q in quads
            products[j_{{ u }} * PRODUCT_PITCH + key_lane * GROUP_QUADS + {{ q }}u] = {{ four_heads("x_%d" % u, q) }};
%% endfor
%% endfor
        }
        workgroupBarrier();

        let s = tile + thread;
%% for q in quads
        var joined_{{ q }} = products[thread * PRODUCT_PITCH + {{ q }}u];
        for (var i = 1u; i < LANES; i++) {
            joined_{{ q }} += products[thread * PRODUCT_PITCH + i * GROUP_QUADS + {{ q }}u];
        }
%% endfor
%% for g in heads
        var x_{{ g }} = MASKED;
%% endfor
        if (s < keys.y) {
%% for g in heads
            x_{{ g }} = logit(joined_{{ g // 4 }}.{{ "xyzw"[g % 4] }}, b, min(n_first + {{ g }}u, n_last), 0u, s, kept);
%% endfor
        }
%% for g in heads
        scattered[{{ g }}u * PITCH + thread] = x_{{ g }};
%% endfor
        gather_maxima(thread);

%% for g in heads
        let new_top_{{ g }} = max(top_{{ g }}, gathered_max({{ g }}u));
        let fade_{{ g }} = decay(top_{{ g }}, new_top_{{ g }});
        top_{{ g }} = new_top_{{ g }};
        total_{{ g }} *= fade_{{ g }};
        sum_{{ g }} *= fade_{{ g }};
        let w_{{ g }} = weight(x_{{ g }}, new_top_{{ g }});
        total_{{ g }} += w_{{ g }};
%% endfor
%% for q in quads
        weights[thread * GROUP_QUADS + {{ q }}u] = {{ four_heads("w", q) }};
%% endfor
        workgroupBarrier();

        // The next tile's maxima are gathered behind a barrier, so these weights are read before they are overwritten.
        if (row < ROWS) {
            let live = min(WORKGROUP, keys.y - tile);
            for (var first = row; first < live; first += {{ TURN }}u * ROWS) {
%% for u in range(TURN)
                let j_{{ u }} = first + {{ u }}u * ROWS;
%% for q in quads
                let share_{{ u }}_{{ q }} = weights[min(j_{{ u }}, WORKGROUP - 1u) * GROUP_QUADS + {{ q }}u];
%% endfor
                var v_{{ u }} = vec4f();
%% if problem.dense
                // A key that no head keeps is not read.
                if (j_{{ u }} < live && ({% for q in quads %}{{ " || " if q else "" }}any(share_{{ u }}_{{ q }} != vec4f()){% endfor %})) {
%% else
                if (j_{{ u }} < live) {
%% endif
                    v_{{ u }} = load_value(v_rows + (tile + j_{{ u }} - parameters.key_first) * parameters.value_s, lane);
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
%% if problem.empty_rows
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
