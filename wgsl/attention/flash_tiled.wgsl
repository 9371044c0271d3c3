{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Flash, tiled: a workgroup owns TILE_Q query rows that read one key/value head, and passes over their keys once,
// TILE_K at a time, with a running maximum a row. Q, and K and V by turns, lie in workgroup memory as float32.
// Threads stand ACROSS × DOWN: each owns ROWS × KEYS logits, and of the same ROWS rows every ACROSS-th vec4 of the
// output. Rows are query rows of HEADS heads of one group: row r is head r % HEADS at t + r / HEADS.

// TILE_Q · Q_PITCH · 16 bytes
var<workgroup> query_tile: array<vec4f, TILE_Q * Q_PITCH>;
// TILE_K · KEY_VALUE_PITCH · 16 bytes: K while logits are made, then V
var<workgroup> key_value_tile: array<vec4f, TILE_K * KEY_VALUE_PITCH>;
// TILE_Q · WEIGHT_PITCH · 16 bytes
var<workgroup> weight_tile: array<vec4f, TILE_Q * WEIGHT_PITCH>;
// ACROSS · (TILE_Q + 1) · 4 bytes: a number a row and thread across, to be reduced over the row
var<workgroup> row_scratch: array<f32, ACROSS * (TILE_Q + 1u)>;
%% if problem.empty_rows == "mean"
// 4 bytes: whether any row keeps no key
var<workgroup> some_end_as_mean: atomic<u32>;
%% endif

%% if problem.segments
{% include "attention/segment_ranges.wgsl" %}

%% endif
fn finish_column(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32, chunk: u32, sum: vec4f) {
    if (chunk < VALUE_CHUNKS) {
        finish_chunk(part, b, t, n, top, total, chunk, sum, {{ "key_value_tile[chunk]" if problem.empty_rows == "mean" else "vec4f()" }});
    }
}

@compute @workgroup_size(WORKGROUP)
fn flash_tiled(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/flash_place.wgsl" %}
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
    let across = thread % ACROSS;
    let row_first = thread / ACROSS * ROWS;

    let scale = query_scale(b);
    for (var i = thread; i < TILE_Q * HEAD_CHUNKS; i += WORKGROUP) {
        let row = i / HEAD_CHUNKS;
        let chunk = i % HEAD_CHUNKS;
        let t = t_first + row / HEADS;
        let n = n_first + row % HEADS;
        var four = vec4f();
        if (t <= t_last && n <= n_last) {
%% if problem.rope is not none
            four = scale * load_query_rotated(query_row(b, t, n), chunk, position_of(b, t));
%% else
            four = scale * load_query(query_row(b, t, n), chunk);
%% endif
        }
        query_tile[row * Q_PITCH + chunk] = four;
    }

    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, t_first, t_last, from_key, min(from_key + parameters.part_keys, parameters.key_end));
%% if problem.segments
    let q_ids = query_segment_range(b, t_first, t_last);
%% endif

    var top: array<f32, ROWS>;
    var total: array<f32, ROWS>;
    var sums: array<array<vec4f, COLUMNS>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        top[r] = MASKED;
    }
    for (var tile = keys.x; tile < keys.y; tile += TILE_K) {
%% if problem.segments
        let k_ids = key_segment_range(b, tile, min(tile + TILE_K, keys.y));
        if (k_ids.x > q_ids.y || k_ids.y < q_ids.x) {
            continue;
        }
%% endif
        workgroupBarrier();
        // Quads of keys are dealt to the threads across: key 4 · q + e lies where its thread reads without bank conflicts.
        for (var i = thread; i < TILE_K * HEAD_CHUNKS; i += WORKGROUP) {
            let key = i / HEAD_CHUNKS;
            let chunk = i % HEAD_CHUNKS;
            let s = tile + key;
            var four = vec4f();
            if (s < keys.y) {
                let row = key_row_of(k_rows, b, key_slot(b, s), k);
%% if problem.rope is not none
                four = load_key_rotated(row, chunk, key_position(b, s));
%% else
                four = load_key(row, chunk);
%% endif
            }
            let slot = (key / 4u / ACROSS * 4u + key % 4u) * ACROSS + key / 4u % ACROSS;
            key_value_tile[slot * K_PITCH + chunk] = four;
        }
        workgroupBarrier();

        var logits = array<array<f32, KEYS>, ROWS>();
        for (var chunk = 0u; chunk < HEAD_CHUNKS; chunk++) {
            var q = array<vec4f, ROWS>();
            for (var r = 0u; r < ROWS; r++) {
                q[r] = query_tile[(row_first + r) * Q_PITCH + chunk];
            }
            for (var i = 0u; i < KEYS; i++) {
                let four = key_value_tile[(i * ACROSS + across) * K_PITCH + chunk];
                for (var r = 0u; r < ROWS; r++) {
                    logits[r][i] = add_dot(logits[r][i], q[r], four);
                }
            }
        }
%% if problem.bias is none and not problem.mask
        var whole = tile + TILE_K <= keys.y && block_keeps(b, t_first, t_last, tile, tile + TILE_K);
%% if problem.segments
        whole = whole && q_ids.x == q_ids.y && k_ids.x == k_ids.y;
%% endif
        if (whole) {
%% if problem.softcap
            for (var r = 0u; r < ROWS; r++) {
                for (var i = 0u; i < KEYS; i++) {
                    logits[r][i] = capped(logits[r][i]);
                }
            }
%% endif
        } else {
%% else
        {
%% endif
%% for r in range(ROWS)
            {
                let t = min(t_first + (row_first + {{ r }}u) / HEADS, t_last);
                let n = min(n_first + (row_first + {{ r }}u) % HEADS, n_last);
                let kept = kept_keys(b, t);
%% for i in range(KEYS)
                let s_{{ i }} = tile + ({{ i // 4 }}u * ACROSS + across) * 4u + {{ i % 4 }}u;
                if (s_{{ i }} < keys.y) {
                    logits[{{ r }}][{{ i }}] = logit(logits[{{ r }}][{{ i }}], b, n, t, s_{{ i }}, kept);
                } else {
                    logits[{{ r }}][{{ i }}] = MASKED;
                }
%% endfor
            }
%% endfor
        }
        for (var r = 0u; r < ROWS; r++) {
            var high = logits[r][0];
            for (var i = 1u; i < KEYS; i++) {
                high = max(high, logits[r][i]);
            }
            row_scratch[across * (TILE_Q + 1u) + row_first + r] = high;
        }

        workgroupBarrier();
        for (var i = thread; i < TILE_K * VALUE_CHUNKS; i += WORKGROUP) {
            let key = i / VALUE_CHUNKS;
            let chunk = i % VALUE_CHUNKS;
            let s = tile + key;
            var four = vec4f();
            if (s < keys.y && key_there(b, s)) {
                four = load_value(value_row_of(v_rows, b, key_slot(b, s), k), chunk);
            }
            key_value_tile[key * V_PITCH + chunk] = four;
        }
        for (var r = 0u; r < ROWS; r++) {
            var high = top[r];
            for (var i = 0u; i < ACROSS; i++) {
                high = max(high, row_scratch[i * (TILE_Q + 1u) + row_first + r]);
            }
            let fade = decay(top[r], high);
            top[r] = high;
            var sum = vec4f();
            for (var i = 0u; i < KEYS; i += 4u) {
                let four = vec4f(
                    weight(logits[r][i], high),
                    weight(logits[r][i + 1u], high),
                    weight(logits[r][i + 2u], high),
                    weight(logits[r][i + 3u], high),
                );
                weight_tile[(row_first + r) * WEIGHT_PITCH + i / 4u * ACROSS + across] = four;
                sum += four;
            }
            // Each thread keeps the sum over its own keys; they are joined after the last tile.
            total[r] = total[r] * fade + (sum.x + sum.y) + (sum.z + sum.w);
            for (var c = 0u; c < COLUMNS; c++) {
                sums[r][c] *= fade;
            }
        }
        workgroupBarrier();

        for (var quad = 0u; quad < TILE_K / 4u; quad++) {
            var w = array<vec4f, ROWS>();
            for (var r = 0u; r < ROWS; r++) {
                w[r] = weight_tile[(row_first + r) * WEIGHT_PITCH + quad];
            }
            for (var c = 0u; c < COLUMNS; c++) {
                let at = quad * 4u * V_PITCH + c * ACROSS + across;
                let v0 = key_value_tile[at];
                let v1 = key_value_tile[at + V_PITCH];
                let v2 = key_value_tile[at + 2u * V_PITCH];
                let v3 = key_value_tile[at + 3u * V_PITCH];
                for (var r = 0u; r < ROWS; r++) {
                    let first_two = fma(vec4f(w[r].x), v0, fma(vec4f(w[r].y), v1, sums[r][c]));
                    sums[r][c] = fma(vec4f(w[r].z), v2, fma(vec4f(w[r].w), v3, first_two));
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        row_scratch[across * (TILE_Q + 1u) + row_first + r] = total[r];
    }
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) {
        var sum = 0.0;
        for (var i = 0u; i < ACROSS; i++) {
            sum += row_scratch[i * (TILE_Q + 1u) + row_first + r];
        }
        total[r] = sum;
    }
%% if problem.empty_rows == "mean"
    // A row that keeps no key needs the sum of V, which is the same for all rows: it is made once, where K and V lay.
    for (var r = 0u; r < ROWS; r++) {
        let t = t_first + (row_first + r) / HEADS;
        if (t <= t_last && ends_as_mean(b, t, total[r])) {
            atomicStore(&some_end_as_mean, 1u);
        }
    }
    workgroupBarrier();
    if (atomicLoad(&some_end_as_mean) != 0u) {
        for (var chunk = thread; chunk < VALUE_CHUNKS; chunk += WORKGROUP) {
            key_value_tile[chunk] = sum_for_mean(part, b, k, chunk);
        }
    }
    workgroupBarrier();
%% endif
%% for r in range(ROWS)
    {
        let t = t_first + (row_first + {{ r }}u) / HEADS;
        let n = n_first + (row_first + {{ r }}u) % HEADS;
        if (t <= t_last && n <= n_last) {
%% for c in range(COLUMNS)
            finish_column(part, b, t, n, top[{{ r }}], total[{{ r }}], {{ c }}u * ACROSS + across, sums[{{ r }}][{{ c }}]);
%% endfor
            if (across == 0u) {
                finish_row(part, b, t, n, top[{{ r }}], total[{{ r }}]);
            }
        }
    }
%% endfor
}
