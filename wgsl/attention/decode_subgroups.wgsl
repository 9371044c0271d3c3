{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/elements.wgsl" as elements %}

// Decode in subgroups: one query row a head against many keys. A team of LANES lanes holds the query rows of HEADS heads
// and their sums in registers, every lane its share of the head dims, and takes BATCH keys at a time, which it reads side
// by side. Products are summed over the team by an exchange in which each step halves what a lane has left: at its end
// every lane holds the logits of one key. Nothing is shared between teams before the keys are done.
{% set heads = range(HEADS) %}
{% set batch = range(BATCH) %}
{% set own = range(OWN) %}
{# What a key without a page, or of another segment, has for a value must not reach the sums, where 0 · NaN is NaN. #}
{% set word_type = {0: "", 4: "u32", 8: "vec2u", 16: "vec4u"}[UNIT] %}
{% set guarded = problem.paged or problem.segments %}
{% macro quad(name, j, i) %}{% if AHEAD %}widen({{ name }}_{{ j }}_{{ i // QUADS }}{{ "." + "xyzw"[i % QUADS] if QUADS > 1 }}){% else %}{{ elements.quad_of(key_name, UNIT, "%s_%d_%d" % (name, j, i // QUADS), i % QUADS) }}{% endif %}{% endmacro %}
{% macro dot4(digit, g, j, i) %}dot4I8Packed({{ digit }}_{{ g }}_{{ i }}, key_{{ j }}_{{ i // QUADS }}{{ "." + "xyzw"[i % QUADS] if QUADS > 1 }}){% endmacro %}
{% macro x(step, j, g) %}{{ "x" if step < 0 else "r%d" % step }}_{{ j }}_{{ g }}{% endmacro %}

// HEADS · TEAMS · 4 bytes: each team's running maximum
var<workgroup> tops: array<f32, HEADS * TEAMS>;
// HEADS · TEAMS · 4 bytes: the sums of its weights
var<workgroup> totals: array<f32, HEADS * TEAMS>;
// TEAMS · VALUE_CHUNKS · 16 bytes: the sums of one head
var<workgroup> sums: array<vec4f, TEAMS * VALUE_CHUNKS>;
%% if AHEAD

{% include "attention/decode_bytes.wgsl" %}
%% endif

@compute @workgroup_size(WORKGROUP)
fn decode(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_invocation_id) place: u32,
) {
{% include "attention/decode_place.wgsl" %}

    // Lanes of a subgroup are threads in a row, so a team is too.
    let lane = place % LANES;
    let home = place - lane;
    let team = thread / LANES;
    let own_key = lane / OWN_LANES;
    let own_head = lane % OWN_LANES / DOUBLES * OWN;
%% for step in steps
    let upper_{{ loop.index0 }} = (lane & {{ step.mask }}u) != 0u;
%% endfor

    let scale = query_scale(b){{ " / WIDE" if key_name == "f8e4m3" and AHEAD }};
%% for g in heads
    let head_{{ g }} = min(n_first + {{ g }}u, n_last);
%% for i in range(KEY_QUADS)
%% set chunk = "(lane + %du) * QUADS + %du" % (i // QUADS * LANES, i % QUADS)
%% if problem.rope is not none
    let q_{{ g }}_{{ i }} = scale * load_query_rotated(query_row(b, 0u, head_{{ g }}), {{ chunk }}, position_of(b, 0u));
%% else
    let q_{{ g }}_{{ i }} = {{ "scale * " if not DIGITS }}load_query(query_row(b, 0u, head_{{ g }}), {{ chunk }});
%% endif
%% endfor
%% if DIGITS
    var most_{{ g }} = largest(q_{{ g }}_0);
%% for i in range(1, KEY_QUADS)
    most_{{ g }} = max(most_{{ g }}, largest(q_{{ g }}_{{ i }}));
%% endfor
%% for step in steps
    most_{{ g }} = max(most_{{ g }}, subgroupShuffleXor(most_{{ g }}, {{ step.mask }}u));
%% endfor
%% for i in range(KEY_QUADS)
    let n_{{ g }}_{{ i }} = integers(q_{{ g }}_{{ i }}, most_{{ g }});
    let low_{{ g }}_{{ i }} = pack4xI8(n_{{ g }}_{{ i }});
%% if DIGITS == 2
    let high_{{ g }}_{{ i }} = pack4xI8(above_lowest(n_{{ g }}_{{ i }}));
%% else
    let mid_{{ g }}_{{ i }} = pack4xI8(above_lowest(n_{{ g }}_{{ i }}));
    let high_{{ g }}_{{ i }} = pack4xI8(above_lowest(above_lowest(n_{{ g }}_{{ i }})));
%% endif
%% endfor
%% endif
%% for i in range(VALUE_QUADS)
    var sum_{{ g }}_{{ i }} = vec4f();
%% endfor
    var top_{{ g }} = MASKED;
%% endfor
%% for o in own
    var own_top_{{ o }} = MASKED;
    var own_total_{{ o }} = 0.0;
%% endfor

%% if DIGITS
%% for o in own
    var own_unit_{{ o }} = scale * unit_of(most_{{ o }});
%% for g in range(o + OWN, HEADS, OWN)
    own_unit_{{ o }} = select(own_unit_{{ o }}, scale * unit_of(most_{{ g }}), own_head == {{ g - o }}u);
%% endfor
%% endfor
%% endif
    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
%% if AHEAD
    // Keys, values and scales are read a turn before they are needed, each as soon as its place is free.
%% for j in batch
%% for i in range(KEY_QUADS // QUADS)
    var key_{{ j }}_{{ i }} = {{ word_type }}();
%% endfor
%% for i in range(VALUE_QUADS // QUADS)
    var value_{{ j }}_{{ i }} = {{ word_type }}();
%% endfor
%% endfor
%% if SCALED and AHEAD
    var next_key_scale = 0.0;
    var next_value_scale = 0.0;
%% endif
    if (keys.x < keys.y) {
%% for j in batch
        let slot_{{ j }} = key_slot(b, min(keys.x + team * BATCH + {{ j }}u, keys.y - 1u));
%% for i in range(KEY_QUADS // QUADS)
        key_{{ j }}_{{ i }} = key[(k_rows + slot_{{ j }} * parameters.key_s) / {{ 4 * QUADS }}u + lane + {{ i * LANES }}u];
%% endfor
%% for i in range(VALUE_QUADS // QUADS)
        value_{{ j }}_{{ i }} = value[(v_rows + slot_{{ j }} * parameters.value_s) / {{ 4 * QUADS }}u + lane + {{ i * LANES }}u];
%% endfor
%% endfor
%% if SCALED and AHEAD
        let scales_first = scales_at(b, key_slot(b, min(keys.x + team * BATCH + own_key, keys.y - 1u)), k);
        next_key_scale = scales[scales_first];
        next_value_scale = scales[scales_first + 1u];
%% endif
    }
%% endif
    for (var tile = keys.x; tile < keys.y; tile += TEAMS * BATCH) {
        let first = tile + team * BATCH;
%% for j in batch
        let s_{{ j }} = min(first + {{ j }}u, keys.y - 1u);
%% if AHEAD
        let next_{{ j }} = key_slot(b, min(first + TEAMS * BATCH + {{ j }}u, keys.y - 1u));
%% else
        let slot_{{ j }} = key_slot(b, s_{{ j }});
%% endif
%% if AHEAD
%% elif UNIT
        let key_at_{{ j }} = (k_rows + slot_{{ j }} * parameters.key_s) / {{ 4 * QUADS }}u + lane;
%% for i in range(KEY_QUADS // QUADS)
        let key_{{ j }}_{{ i }} = key[key_at_{{ j }} + {{ i * LANES }}u];
%% endfor
%% else
        let key_at_{{ j }} = key_row_of(k_rows, b, slot_{{ j }}, k);
%% for i in range(KEY_QUADS)
%% if problem.rope is not none
        let k_{{ j }}_{{ i }} = load_key_rotated(key_at_{{ j }}, lane + {{ i * LANES }}u, key_position(b, s_{{ j }}));
%% else
        let k_{{ j }}_{{ i }} = load_key(key_at_{{ j }}, lane + {{ i * LANES }}u);
%% endif
%% endfor
%% endif
%% endfor
%% for j in batch
%% if DIGITS
%% for g in heads
        // The sum over a row of 256 stays below 2^31; of a third digit's products the upper part is enough.
%% if DIGITS == 3
        var lowest_{{ j }}_{{ g }} = 128;
%% for i in range(KEY_QUADS)
        lowest_{{ j }}_{{ g }} += {{ dot4("low", g, j, i) }};
%% endfor
%% endif
        var x_{{ j }}_{{ g }} = 0;
%% for i in range(KEY_QUADS)
        x_{{ j }}_{{ g }} += {{ dot4("high", g, j, i) }};
%% endfor
        x_{{ j }}_{{ g }} = (x_{{ j }}_{{ g }} << 8u){{ " + (lowest_%d_%d >> 8u)" % (j, g) if DIGITS == 3 }};
%% for i in range(KEY_QUADS)
        x_{{ j }}_{{ g }} += {{ dot4("low" if DIGITS == 2 else "mid", g, j, i) }};
%% endfor
%% endfor
%% else
%% for g in heads
        var x_{{ j }}_{{ g }} = 0.0;
%% endfor
%% for i in range(KEY_QUADS)
%% if UNIT
        let k_{{ j }}_{{ i }} = {{ quad("key", j, i) }};
%% endif
%% for g in heads
        x_{{ j }}_{{ g }} = add_dot(x_{{ j }}_{{ g }}, q_{{ g }}_{{ i }}, k_{{ j }}_{{ i }});
%% endfor
%% endfor
%% endif
%% endfor
%% if AHEAD
%% for j in batch
%% for i in range(KEY_QUADS // QUADS)
        key_{{ j }}_{{ i }} = key[(k_rows + next_{{ j }} * parameters.key_s) / {{ 4 * QUADS }}u + lane + {{ i * LANES }}u];
%% endfor
%% endfor
%% endif

        // The exchange: first keys are shared out, then heads; what cannot be halved is added by both sides.
%% for step in steps
%% set at = loop.index0
%% for j in range(step.keys)
%% for g in range(step.heads)
%% set a = x(at - 1, j, g)
%% if step.kind == "add"
        let {{ x(at, j, g) }} = {{ a }} + subgroupShuffleXor({{ a }}, {{ step.mask }}u);
%% else
%% set c = x(at - 1, j + step.keys, g) if step.kind == "keys" else x(at - 1, j, g + step.heads)
        let {{ x(at, j, g) }} = select({{ a }}, {{ c }}, upper_{{ at }}) + subgroupShuffleXor(select({{ c }}, {{ a }}, upper_{{ at }}), {{ step.mask }}u);
%% endif
%% endfor
%% endfor
%% endfor

        // Without a branch: the compiler may then read values before it has the logits.
        let own_s = min(first + own_key, keys.y - 1u);
        let there = first + own_key < keys.y;
%% if SCALED and AHEAD
        let key_scale = next_key_scale;
        let value_scale = {{ "select(0.0, next_value_scale, key_there(b, own_s))" if problem.paged else "next_value_scale" }};
        let scales_next = scales_at(b, key_slot(b, min(own_s + TEAMS * BATCH, keys.y - 1u)), k);
        next_key_scale = scales[scales_next];
        next_value_scale = scales[scales_next + 1u];
%% elif SCALED
        let scales_here = scales_at(b, key_slot(b, own_s), k);
        let key_scale = scales[scales_here];
        let value_scale = {{ "select(0.0, scales[scales_here + 1u], key_there(b, own_s))" if problem.paged else "scales[scales_here + 1u]" }};
%% endif
%% for o in own
{% set product = x(steps | length - 1, 0, o) %}
{% set product = "own_unit_%d * f32(%s)" % (o, product) if DIGITS else "without_infinity(%s)" % product if NAN_IS_INFINITE else product %}
        let kept_{{ o }} = logit({{ "key_scale * " if SCALED }}{{ product }}, b, min(n_first + own_head + {{ o }}u, n_last), 0u, own_s, kept);
        let y_{{ o }} = select(MASKED, kept_{{ o }}, there);
%% endfor

        // A maximum is followed where it grew much: sums stay far from overflow, and rescaling is rare.
        if (subgroupAny({% for o in own %}{{ " || " if o }}y_{{ o }} > own_top_{{ o }} + SLACK{% endfor %})) {
%% for o in own
            var high_{{ o }} = y_{{ o }};
%% for step in steps
%% if step.kind == "keys"
            high_{{ o }} = max(high_{{ o }}, subgroupShuffleXor(high_{{ o }}, {{ step.mask }}u));
%% endif
%% endfor
            high_{{ o }} = max(high_{{ o }}, own_top_{{ o }});
            own_total_{{ o }} *= decay(own_top_{{ o }}, high_{{ o }});
            own_top_{{ o }} = high_{{ o }};
%% endfor
%% for g in heads
            let high_of_{{ g }} = subgroupShuffle(high_{{ g % OWN }}, home + {{ g // OWN * DOUBLES }}u);
            let fade_{{ g }} = decay(top_{{ g }}, high_of_{{ g }});
            top_{{ g }} = high_of_{{ g }};
%% for i in range(VALUE_QUADS)
            sum_{{ g }}_{{ i }} *= fade_{{ g }};
%% endfor
%% endfor
        }
%% for o in own
        let w_{{ o }} = weight(y_{{ o }}, own_top_{{ o }});
        own_total_{{ o }} += w_{{ o }};
%% if SCALED
        let v_{{ o }} = w_{{ o }} * value_scale;
%% endif
%% endfor

%% for j in batch
%% if guarded
        let there_{{ j }} = key_there(b, s_{{ j }}){{ " && same_segment(b, 0u, s_%d)" % j if problem.segments }};
%% endif
%% if AHEAD
%% if guarded
        if (!there_{{ j }}) {
%% for i in range(VALUE_QUADS // QUADS)
            value_{{ j }}_{{ i }} = {{ word_type }}();
%% endfor
        }
%% endif
%% elif UNIT
        let value_at_{{ j }} = (v_rows + slot_{{ j }} * parameters.value_s) / {{ 4 * QUADS }}u + lane;
%% for i in range(VALUE_QUADS // QUADS)
%% if guarded
        var value_{{ j }}_{{ i }} = value[value_at_{{ j }} + {{ i * LANES }}u];
        if (!there_{{ j }}) {
            value_{{ j }}_{{ i }} = {{ word_type }}();
        }
%% else
        let value_{{ j }}_{{ i }} = value[value_at_{{ j }} + {{ i * LANES }}u];
%% endif
%% endfor
%% else
        let value_at_{{ j }} = value_row_of(v_rows, b, slot_{{ j }}, k);
%% endif
%% endfor
%% for j in batch
%% for g in heads
        let w_{{ j }}_{{ g }} = subgroupShuffle({{ "v" if SCALED else "w" }}_{{ g % OWN }}, home + {{ j * OWN_LANES + g // OWN * DOUBLES }}u);
%% endfor
%% for i in range(VALUE_QUADS)
%% if UNIT
        let v_{{ j }}_{{ i }} = {{ quad("value", j, i) }};
%% else
        let v_{{ j }}_{{ i }} = {{ "select(vec4f(), " if guarded }}load_value(value_at_{{ j }}, lane + {{ i * LANES }}u){{ ", there_%d)" % j if guarded }};
%% endif
%% for g in heads
        sum_{{ g }}_{{ i }} += w_{{ j }}_{{ g }} * v_{{ j }}_{{ i }};
%% endfor
%% endfor
%% endfor
%% if AHEAD
%% for j in batch
%% for i in range(VALUE_QUADS // QUADS)
        value_{{ j }}_{{ i }} = value[(v_rows + next_{{ j }} * parameters.value_s) / {{ 4 * QUADS }}u + lane + {{ i * LANES }}u];
%% endfor
%% endfor
%% endif
    }

    // The teams' sums are brought to one maximum and added, a head after the other.
%% for o in own
%% for step in steps
%% if step.kind == "keys"
    own_total_{{ o }} += subgroupShuffleXor(own_total_{{ o }}, {{ step.mask }}u);
%% endif
%% endfor
    if (own_key == 0u && lane % DOUBLES == 0u) {
        totals[(own_head + {{ o }}u) * TEAMS + team] = own_total_{{ o }};
        tops[(own_head + {{ o }}u) * TEAMS + team] = own_top_{{ o }};
    }
%% endfor
    workgroupBarrier();
%% for g in heads
    var all_{{ g }} = MASKED;
    for (var i = 0u; i < TEAMS; i++) {
        all_{{ g }} = max(all_{{ g }}, tops[{{ g }}u * TEAMS + i]);
    }
    var total_{{ g }} = 0.0;
    for (var i = 0u; i < TEAMS; i++) {
        total_{{ g }} += totals[{{ g }}u * TEAMS + i] * decay(tops[{{ g }}u * TEAMS + i], all_{{ g }});
    }
%% endfor
%% if problem.empty_rows == "mean"
    let means = {% for g in heads %}{{ " || " if g else "" }}ends_as_mean(b, 0u, total_{{ g }}){% endfor %};
%% endif
%% for g in heads
    let last_{{ g }} = decay(top_{{ g }}, all_{{ g }}){{ " / WIDE" if key_name == "f8e4m3" and AHEAD }};
%% for i in range(VALUE_QUADS)
    sums[team * VALUE_CHUNKS + (lane + {{ i // QUADS * LANES }}u) * QUADS + {{ i % QUADS }}u] = {{ "last_%d * sum_%d_%d" % (g, g, i) if not NAN_IS_INFINITE else "without_infinities(last_%d * sum_%d_%d)" % (g, g, i) }};
%% endfor
    workgroupBarrier();
    if (n_first + {{ g }}u <= n_last) {
        for (var chunk = thread; chunk < VALUE_CHUNKS; chunk += WORKGROUP) {
            var sum = sums[chunk];
            for (var i = 1u; i < TEAMS; i++) {
                sum += sums[i * VALUE_CHUNKS + chunk];
            }
            var all_values = vec4f();
%% if problem.empty_rows == "mean"
            if (means) {
                all_values = sum_for_mean(part, b, k, chunk);
            }
%% endif
            finish_chunk(part, b, 0u, n_first + {{ g }}u, all_{{ g }}, total_{{ g }}, chunk, sum, all_values);
        }
        if (thread == 0u) {
            finish_row(part, b, 0u, n_first + {{ g }}u, all_{{ g }}, total_{{ g }});
        }
    }
    workgroupBarrier();
%% endfor
}
