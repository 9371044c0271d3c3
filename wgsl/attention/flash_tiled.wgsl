{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "attention/flash_tiled_stages.wgsl" as stages with context %}

// Flash, tiled: a workgroup owns TILE_Q query rows that read one key/value head, and passes over their keys once,
// TILE_K at a time, with a running maximum a row. Threads stand ACROSS × DOWN. Each owns ROWS × KEYS logits, quads of
// rows that are DOWN apart and quads of keys that are ACROSS apart, and of its rows every ACROSS-th quad of the output.
// What threads share is float32 in workgroup memory, little at a time, so that several workgroups find room: first
// STAGE_CHUNKS · 4 head dims of Q and K, turned, a dim a line, of which a thread reads ROWS + KEYS numbers for
// ROWS · KEYS products; then weights, turned too, and values of STAGE_KEYS keys, a key a line.
// In turned lines quad q lies at q ^ (line / 4 & mask), of weights at q ^ (line / 4 * 2 & mask), as two threads beside
// each other write two quads of the same keys: then neither writes nor reads meet many bank conflicts.
// Rows are query rows of HEADS heads of one group: row r is head r % HEADS at t + r / HEADS.
{% set row_quads = range(ROWS // 4) %}
{% set key_quads = range(KEYS // 4) %}
{% set columns = range(COLUMNS) %}
{% set xyzw = "xyzw" %}
{# Whether a logit takes more than its product and ranges of keys. #}
{% set looked_up = problem.dense or problem.softcap %}

// STAGED · 16 bytes
var<workgroup> staged: array<vec4f, STAGED>;
%% if not SHUFFLES
// ACROSS · SCRATCH_PITCH · 16 bytes: a number a row and thread across, to be reduced over the row
var<workgroup> row_scratch: array<vec4f, ACROSS * SCRATCH_PITCH>;
%% endif

%% if problem.segments
{% include "attention/segment_ranges.wgsl" %}

%% endif
fn decay_four(x: vec4f, top: vec4f) -> vec4f {
    return vec4f(decay(x.x, top.x), decay(x.y, top.y), decay(x.z, top.z), decay(x.w, top.w));
}

fn finish_column(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32, chunk: u32, sum: vec4f) {
    if (chunk < VALUE_CHUNKS) {
        finish_chunk(part, b, t, n, top, total, chunk, sum, {{ "staged[chunk]" if problem.empty_rows == "mean" else "vec4f()" }});
    }
}
{# A vec4f over the rows of quad j, reduced over the threads across, which are neighbours but one in a subgroup. #}
{% macro reduce(name, j, function) %}
%% if SHUFFLES
%% for step in range(1, 6)
%% if 2 ** step <= ACROSS
            {{ name }} = {{ function % (name, "subgroupShuffleXor(%s, %du)" % (name, 2 ** step)) }};
%% endif
%% endfor
%% else
            for (var i = 0u; i < ACROSS; i++) {
                {{ name }} = {{ function % (name, "row_scratch[i * SCRATCH_PITCH + down + %du * DOWN]" % j) }};
            }
%% endif
{% endmacro %}
{# Row r of a thread, from the first of its workgroup. #}
{% macro own_row(r) %}(4u * (down + {{ r }} / 4u * DOWN) + {{ r }} % 4u){% endmacro %}

@compute @workgroup_size(WORKGROUP)
fn flash_tiled(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/flash_place.wgsl" %}
    let q_rows = query_row(b, 0u, 0u);
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
    // Neighbours read the same keys, and the next but one the same rows: 16 bytes a thread are then read half a
    // subgroup at once.
    let across = thread / 2u % ACROSS;
    let down = thread / (2u * ACROSS) * 2u + thread % 2u;

    let scale = query_scale(b);
    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, t_first, t_last, from_key, min(from_key + parameters.part_keys, parameters.key_end));
%% if problem.segments
    let q_ids = query_segment_range(b, t_first, t_last);
%% endif

%% for j in row_quads
    var top_{{ j }} = vec4f(MASKED);
    var total_{{ j }} = vec4f();
%% endfor
%% for r in range(ROWS)
%% for c in columns
    var sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endfor
%% if EARLY
{{ stages.find_queries() }}
%% endif
{{ stages.declare_values() }}
    for (var tile = keys.x; tile < keys.y; tile += TILE_K) {
%% if problem.segments
        let k_ids = key_segment_range(b, tile, min(tile + TILE_K, keys.y));
        if (k_ids.x > q_ids.y || k_ids.y < q_ids.x) {
            continue;
        }
%% endif
%% for i in range(KEYS)
%% for j in row_quads
        var x_{{ i }}_{{ j }} = vec4f();
%% endfor
%% endfor
        for (var first = 0u; first < HEAD_CHUNKS; first += STAGE_CHUNKS) {
%% if not EARLY
{{ stages.find_queries() }}
%% endif
{{ stages.read_rows("first") }}
            workgroupBarrier();
{{ stages.store_rows() }}
            workgroupBarrier();
            for (var turn = 0u; turn < 4u * STAGE_CHUNKS; turn += TURN) {
%% for line in range(TURN)
{% set four = line // 4 * 4 %}
%% if line == four
                let q_at_{{ line }} = (turn + {{ line }}u) * ROW_QUADS + (down ^ ((turn / 4u + {{ line // 4 }}u) & ROW_MASK));
                let k_at_{{ line }} = KEYS_AT + (turn + {{ line }}u) * KEY_QUADS + (across ^ ((turn / 4u + {{ line // 4 }}u) & KEY_MASK));
%% endif
                {
%% for j in row_quads
                    let q_{{ j }} = staged[q_at_{{ four }} + {{ line - four }}u * ROW_QUADS + {{ j }}u * DOWN];
%% endfor
%% for i in key_quads
                    let k_{{ i }} = staged[k_at_{{ four }} + {{ line - four }}u * KEY_QUADS + {{ i }}u * ACROSS];
%% endfor
%% for i in range(KEYS)
%% for j in row_quads
                    x_{{ i }}_{{ j }} = fma(vec4f(k_{{ i // 4 }}.{{ xyzw[i % 4] }}), q_{{ j }}, x_{{ i }}_{{ j }});
%% endfor
%% endfor
                }
%% endfor
            }
        }
%% if EARLY
{{ stages.read_values("0u") }}
%% endif
%% if problem.bias is none and not problem.mask
        var whole = tile + TILE_K <= keys.y && block_keeps(b, t_first, t_last, tile, tile + TILE_K);
%% if problem.segments
        whole = whole && q_ids.x == q_ids.y && k_ids.x == k_ids.y;
%% endif
%% endif
%% if looked_up
        // A loop over what lies in registers is none: logits of a key at a time go through workgroup memory.
        workgroupBarrier();
        if ({{ "true" if problem.bias is not none or problem.mask or problem.softcap else "!whole" }}) {
%% for i in range(KEYS)
            {
                let s = tile + 4u * (across + {{ i // 4 }}u * ACROSS) + {{ i % 4 }}u;
%% for j in row_quads
                staged[thread + {{ j }}u * WORKGROUP] = x_{{ i }}_{{ j }};
%% endfor
                for (var r = 0u; r < ROWS; r++) {
                    let t = min(t_first + {{ own_row("r") }} / HEADS, t_last);
                    let n = min(n_first + {{ own_row("r") }} % HEADS, n_last);
                    let at = thread + r / 4u * WORKGROUP;
                    let product = staged[at][r % 4u];
                    var x = MASKED;
%% if problem.softcap and problem.bias is none and not problem.mask
                    if (whole) {
                        x = capped(product);
                    } else if (s < keys.y) {
%% else
                    if (s < keys.y) {
%% endif
                        x = logit(product, b, n, t, s, kept_keys(b, t));
                    }
                    staged[at][r % 4u] = x;
                }
%% for j in row_quads
                x_{{ i }}_{{ j }} = staged[thread + {{ j }}u * WORKGROUP];
%% endfor
            }
%% endfor
        }
%% else
        if (!whole) {
%% for i in range(KEYS)
            let s_{{ i }} = tile + 4u * (across + {{ i // 4 }}u * ACROSS) + {{ i % 4 }}u;
            let there_{{ i }} = s_{{ i }} < keys.y && key_there(b, s_{{ i }});
            let position_{{ i }} = key_position(b, s_{{ i }});
%% endfor
%% for j in row_quads
            {
%% for e in range(4)
                let kept_{{ e }} = kept_keys(b, min(t_first + {{ own_row("%du" % (4 * j + e)) }} / HEADS, t_last));
%% endfor
%% for i in range(KEYS)
                let keeps_{{ i }} = vec4<bool>(there_{{ i }}) & vec4<bool>({% for e in range(4) %}in_range(kept_{{ e }}, position_{{ i }}){{ ", " if e < 3 }}{% endfor %});
                x_{{ i }}_{{ j }} = select(vec4f(MASKED), x_{{ i }}_{{ j }}, keeps_{{ i }});
%% endfor
            }
%% endfor
        }
%% endif

%% for j in row_quads
        var high_{{ j }} = x_0_{{ j }};
%% for i in range(1, KEYS)
        high_{{ j }} = max(high_{{ j }}, x_{{ i }}_{{ j }});
%% endfor
%% if not SHUFFLES
        row_scratch[across * SCRATCH_PITCH + down + {{ j }}u * DOWN] = high_{{ j }};
%% endif
%% endfor
        workgroupBarrier();
%% for j in row_quads
        {
{% set join = reduce("high_%d" % j, j, "max(%s, %s)") %}
            {{ join if not SHUFFLES }}
            // A maximum is followed where it grew much, as a thread's own keys tell: weights stay far from overflow,
            // and rescaling is rare.
            if ({{ "subgroupAny" if SHUFFLES }}(any(high_{{ j }} > top_{{ j }} + SLACK))) {
                {{ join if SHUFFLES }}
                high_{{ j }} = max(high_{{ j }}, top_{{ j }});
                let fade = decay_four(top_{{ j }}, high_{{ j }});
                top_{{ j }} = high_{{ j }};
                total_{{ j }} *= fade;
%% for e in range(4)
%% for c in columns
                sum_{{ 4 * j + e }}_{{ c }} *= fade.{{ xyzw[e] }};
%% endfor
%% endfor
            }
            // Where no key was kept yet, what is masked is far below 0 too.
            let base = select(top_{{ j }}, vec4f(), top_{{ j }} == vec4f(MASKED));
            var own = vec4f();
%% for i in range(KEYS)
            x_{{ i }}_{{ j }} = decay_four(x_{{ i }}_{{ j }}, base);
            own += x_{{ i }}_{{ j }};
%% endfor
            // Each thread keeps the sum over its own keys; they are joined after the last tile.
            total_{{ j }} += own;
        }
%% endfor

        // Stages whose keys are all past the last are left out.
        for (var first = 0u; first < min(TILE_K, keys.y - tile); first += STAGE_KEYS) {
%% if not EARLY
{{ stages.read_values("first") }}
%% endif
%% if STAGE_KEYS < TILE_K
            if (first > 0u) {
                workgroupBarrier();
            }
%% endif
{{ stages.store_values() }}
            // The weights of these keys, by the threads that made them.
%% for i in key_quads
            {
                let quad = across + {{ i }}u * ACROSS - first / 4u;
                if (quad < STAGE_KEYS / 4u) {
                    let at = 4u * quad * ROW_QUADS + (down ^ ((2u * quad) & ROW_MASK));
%% for e in range(4)
%% for j in row_quads
                    staged[at + {{ e }}u * ROW_QUADS + {{ j }}u * DOWN] = x_{{ 4 * i + e }}_{{ j }};
%% endfor
%% endfor
                }
            }
%% endfor
            workgroupBarrier();
%% if EARLY and STAGE_KEYS < TILE_K
            if (first + STAGE_KEYS < TILE_K) {
{{ stages.read_values("(first + STAGE_KEYS)") }}
            }
%% endif
            for (var turn = 0u; turn < STAGE_KEYS; turn += VALUE_TURN) {
                let v_at = VALUES_AT + turn * VALUE_PITCH + across;
%% for line in range(VALUE_TURN)
{% set four = line // 4 * 4 %}
%% if line == four
                let w_at_{{ line }} = (turn + {{ line }}u) * ROW_QUADS + (down ^ ((turn / 2u + {{ line // 4 * 2 }}u) & ROW_MASK));
%% endif
                {
%% for j in row_quads
                    let w_{{ j }} = staged[w_at_{{ four }} + {{ line - four }}u * ROW_QUADS + {{ j }}u * DOWN];
%% endfor
%% for c in columns
                    let v_{{ c }} = staged[v_at + {{ line }}u * VALUE_PITCH + {{ c }}u * ACROSS];
%% endfor
%% for r in range(ROWS)
%% for c in columns
                    sum_{{ r }}_{{ c }} = fma(vec4f(w_{{ r // 4 }}.{{ xyzw[r % 4] }}), v_{{ c }}, sum_{{ r }}_{{ c }});
%% endfor
%% endfor
                }
%% endfor
            }
        }
    }

%% if not SHUFFLES
    workgroupBarrier();
%% for j in row_quads
    row_scratch[across * SCRATCH_PITCH + down + {{ j }}u * DOWN] = total_{{ j }};
    total_{{ j }} = vec4f();
%% endfor
    workgroupBarrier();
%% endif
%% for j in row_quads
    {{ reduce("total_%d" % j, j, "%s + %s") }}
%% endfor
%% for r in range(ROWS)
    let t_{{ r }} = t_first + {{ own_row("%du" % r) }} / HEADS;
    let n_{{ r }} = n_first + {{ own_row("%du" % r) }} % HEADS;
%% endfor
%% if problem.empty_rows == "mean"
    // A row that keeps no key needs the sum of V, which is the same for all rows: if there is such a row it is made
    // once, by all threads.
{% set shares = [WORKGROUP // VALUE_CHUNKS, 8] | min or 1 %}
    var some_end_as_mean = false;
%% for r in range(ROWS)
    some_end_as_mean = some_end_as_mean || (t_{{ r }} <= t_last && ends_as_mean(b, t_{{ r }}, total_{{ r // 4 }}.{{ xyzw[r % 4] }}));
%% endfor
    workgroupBarrier();
    if (across == 0u) {
        staged[down] = vec4f(select(0.0, 1.0, some_end_as_mean));
    }
    workgroupBarrier();
    for (var i = 0u; i < DOWN; i++) {
        some_end_as_mean = some_end_as_mean || staged[i].x != 0.0;
    }
    workgroupBarrier();
    if (some_end_as_mean) {
        for (var i = thread; i < {{ shares * VALUE_CHUNKS }}u; i += WORKGROUP) {
            staged[i] = share_for_mean(part, b, k, i % VALUE_CHUNKS, i / VALUE_CHUNKS, {{ shares }}u);
        }
    }
    workgroupBarrier();
%% if shares > 1
    if (some_end_as_mean && thread < VALUE_CHUNKS) {
        for (var share = 1u; share < {{ shares }}u; share++) {
            staged[thread] += staged[share * VALUE_CHUNKS + thread];
        }
    }
    workgroupBarrier();
%% endif
%% endif
%% for r in range(ROWS)
    if (t_{{ r }} <= t_last && n_{{ r }} <= n_last) {
%% set row = "top_%d.%s, total_%d.%s" % (r // 4, xyzw[r % 4], r // 4, xyzw[r % 4])
%% for c in columns
        finish_column(part, b, t_{{ r }}, n_{{ r }}, {{ row }}, {{ c }}u * ACROSS + across, sum_{{ r }}_{{ c }});
%% endfor
        if (across == 0u) {
            finish_row(part, b, t_{{ r }}, n_{{ r }}, {{ row }});
        }
    }
%% endfor
}
