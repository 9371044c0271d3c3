{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/elements.wgsl" as elements %}

// Decode in subgroups: one query row a head against many keys. A team of LANES lanes holds the query rows of HEADS
// heads and their sums in registers, every lane its share of the head dims, and takes BATCH keys at a time, which it
// reads side by side. Products are summed over the team by an exchange in which each step halves what a lane has left.
// Which head a register belongs to may differ from lane to lane, so that what a lane keeps in a step lies in the first
// half of its registers and what it gives in the second; so it may be with keys where reads stay wide. Nothing is
// shared between teams before the keys are done.
{# A long file: its parts are of one loop, and share registers by name. #}
{% set heads = range(HEADS) %}
{% set batch = range(BATCH) %}
{% set own = range(steps[-1].heads) %}
{% set own_keys = range(steps[-1].keys) %}
{% set word_type = {0: "", 4: "u32", 8: "vec2u", 16: "vec4u"}[UNIT] %}
{# What a key without a page, or of another segment, has for a value must not reach the sums, where 0 · NaN is NaN. #}
{% set guarded = problem.paged or problem.segments %}
{% macro word(name, j, i) %}{{ name }}_{{ j }}_{{ i // QUADS }}{{ "." + "xyzw"[i % QUADS] if QUADS > 1 }}{% endmacro %}
{% macro quad(name, j, i) %}{% if AHEAD %}widen({{ word(name, j, i) }}){% else %}{{ elements.quad_of(key_name, UNIT, "%s_%d_%d" % (name, j, i // QUADS), i % QUADS) }}{% endif %}{% endmacro %}
{% macro dot4(digit, g, j, i) %}dot4I8Packed({{ digit }}_{{ g }}_{{ i }}, {{ word("key", j, i) }}){% endmacro %}
{% macro x(step, j, g) %}{{ "x" if step < 0 else "r%d" % step }}_{{ j }}_{{ g }}{% endmacro %}
{# Which of the heads or keys lies in register n of a lane; and the first whose logits it ends up with. #}
{% macro placed(what, n) %}{{ n }}u{% for step in steps if step.kind == what and step.turned %} {{ "-" if step.second(n) else "+" }} select(0u, {{ step.size }}u, upper_{{ step.mask }}){% endfor %}{% endmacro %}
{% macro first_own(what) %}0u{% for step in steps if step.kind == what %} + select(0u, {{ step.size }}u, upper_{{ step.mask }}){% endfor %}{% endmacro %}
{# Where key s lies along the token axis, and where a lane's share of it does, in reads. Of two ways to reckon
   it, compilers use registers better with one where keys are multiplied as digits, and with the other where
   they are not. #}
{% macro slot(s) %}{{ s if DIGITS and not problem.paged else "key_slot(b, %s)" % s }}{% endmacro %}
{% macro share(name, slot) %}{{ "%s_base + %s * %s_step" % (name, slot, name) if DIGITS else "(%s_rows + %s * parameters.%s_s) / %du + lane" % (name[0], slot, name, 4 * QUADS) }}{% endmacro %}
{# Which of a row's reads is a lane's i-th: where rows are padded, the last in place of those behind it. #}
{% macro piece(name, i) %}{{ "%du" % (i * LANES) if problem.exact_dims else "%s_piece_%d" % (name, i) }}{% endmacro %}
{# Four numbers of a key; in the padding, whose queries are 0, what lies there must not be infinite. #}
{% macro key_quad(j, i) %}{{ quad("key", j, i) if problem.exact_dims else "select(vec4f(), %s, key_live_%d)" % (quad("key", j, i), i // QUADS) }}{% endmacro %}
{# A value of the lane across `mask`. #}
{% macro across(value, mask) %}{{ "subgroupShuffleXor(%s, %du)" % (value, mask) if mask else value }}{% endmacro %}
{# What the lane has that ends up with what this one has in registers j of keys and g of heads. #}
{% macro of_owner(value, j, g) -%}
{% set mask = team.across(j, g) -%}
{% if team.straight -%}
subgroupShuffle({{ value }}, {{ "(home ^ %du)" % mask if mask else "home" }} + {{ team.along(j, g) }}u)
{%- else -%}
{{ across(value, mask) }}
{%- endif %}
{%- endmacro %}

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
%% if team.straight
    let home = place & ~{{ team.straight }}u;
%% endif
    let team = thread / LANES;
%% if UNIT and not problem.exact_dims
%% for i in range(KEY_QUADS // QUADS)
    let key_live_{{ i }} = lane + {{ i * LANES }}u < parameters.H / {{ 4 * QUADS }}u;
    let key_piece_{{ i }} = min(lane + {{ i * LANES }}u, parameters.H / {{ 4 * QUADS }}u - 1u) - lane;
%% endfor
%% for i in range(VALUE_QUADS // QUADS)
    let value_piece_{{ i }} = min(lane + {{ i * LANES }}u, parameters.Hv / {{ 4 * QUADS }}u - 1u) - lane;
%% endfor
%% endif
%% for step in steps
    let upper_{{ step.mask }} = (lane & {{ step.mask }}u) != 0u;
%% endfor
    let own_key = {{ first_own("keys") }};
    let own_head = {{ first_own("heads") }};

    let scale = query_scale(b){{ " / WIDE" if NAN_SEEN }};
%% for g in heads
    let head_{{ g }} = min(n_first + {{ placed("heads", g) }}, n_last);
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
%% endif
%% endfor
%% if DIGITS
%% for step in steps
%% for g in heads
%% set other = g if step.kind != "heads" or not step.turned else g - step.size if step.second(g) else g + step.size
    let most_{{ g }}_{{ step.mask }} = max(most_{{ g }}, subgroupShuffleXor(most_{{ other }}, {{ step.mask }}u));
%% endfor
%% for g in heads
    most_{{ g }} = most_{{ g }}_{{ step.mask }};
%% endfor
%% endfor
%% endif
%% for g in heads
%% if DIGITS
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
    let own_unit_{{ o }} = scale * unit_of(most_{{ o }});
%% endfor
%% endif
    let from_key = parameters.key_first + part * parameters.part_keys;
    let keys = block_keys(b, 0u, 0u, from_key, min(from_key + parameters.part_keys, parameters.key_end));
    let kept = kept_keys(b, 0u);
    let k_rows = key_rows(b, k);
    let v_rows = value_rows(b, k);
%% if DIGITS
    // Where this lane's share of key 0 lies, and how far it is to the next key's, in reads; rows may be reversed.
    let key_step = bitcast<u32>(bitcast<i32>(parameters.key_s) / {{ 4 * QUADS }});
    let value_step = bitcast<u32>(bitcast<i32>(parameters.value_s) / {{ 4 * QUADS }});
    let key_base = k_rows / {{ 4 * QUADS }}u + lane{{ " - parameters.key_first * key_step" if not problem.paged }};
    let value_base = v_rows / {{ 4 * QUADS }}u + lane{{ " - parameters.key_first * value_step" if not problem.paged }};
%% endif
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
%% if NAN_SEEN
%% for i in range(VALUE_QUADS)
    var value_seen_{{ i }} = 0u;
%% endfor
%% endif
%% if SCALED and AHEAD
%% for m in own_keys
    var next_key_scale_{{ m }} = 0.0;
    var next_value_scale_{{ m }} = 0.0;
%% endfor
%% endif
    if (keys.x < keys.y) {
%% for j in batch
        let slot_{{ j }} = {{ slot("min(keys.x + team * BATCH + %s, keys.y - 1u)" % placed("keys", j)) }};
%% for i in range(KEY_QUADS // QUADS)
        key_{{ j }}_{{ i }} = key[{{ share("key", "slot_%d" % j) }} + {{ piece("key", i) }}];
%% endfor
%% for i in range(VALUE_QUADS // QUADS)
        value_{{ j }}_{{ i }} = value[{{ share("value", "slot_%d" % j) }} + {{ piece("value", i) }}];
%% endfor
%% endfor
%% if SCALED and AHEAD
%% for m in own_keys
        let scales_first_{{ m }} = scales_at(b, key_slot(b, min(keys.x + team * BATCH + own_key + {{ m }}u, keys.y - 1u)), k);
        next_key_scale_{{ m }} = scales[scales_first_{{ m }}];
        next_value_scale_{{ m }} = scales[scales_first_{{ m }} + 1u];
%% endfor
%% endif
    }
%% endif
    for (var tile = keys.x; tile < keys.y; tile += TEAMS * BATCH) {
        let first = tile + team * BATCH;
%% for j in batch
%% if not AHEAD or guarded
        let s_{{ j }} = min(first + {{ placed("keys", j) }}, keys.y - 1u);
%% endif
%% if AHEAD
        let next_{{ j }} = {{ slot("min(first + TEAMS * BATCH + %s, keys.y - 1u)" % placed("keys", j)) }};
%% else
        let slot_{{ j }} = {{ slot("s_%d" % j) }};
%% endif
%% if AHEAD
%% elif UNIT
        let key_at_{{ j }} = {{ share("key", "slot_%d" % j) }};
%% for i in range(KEY_QUADS // QUADS)
        let key_{{ j }}_{{ i }} = key[key_at_{{ j }} + {{ piece("key", i) }}];
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
        let k_{{ j }}_{{ i }} = {{ key_quad(j, i) }};
%% endif
%% for g in heads
        x_{{ j }}_{{ g }} = add_dot(x_{{ j }}_{{ g }}, q_{{ g }}_{{ i }}, k_{{ j }}_{{ i }});
%% endfor
%% endfor
%% endif
%% endfor
%% if NAN_SEEN
%% for j in batch
        var seen_{{ j }} = 0u;
%% for i in range(KEY_QUADS)
        seen_{{ j }} = ones_of_key(seen_{{ j }}, {{ word("key", j, i) }});
%% endfor
%% endfor
        if (subgroupAny((({% for j in batch %}{{ " | " if j }}seen_{{ j }}{% endfor %}) & TOPS_OF_BYTES) != 0u)) {
%% for j in batch
%% for g in heads
            x_{{ j }}_{{ g }} = nan_if((seen_{{ j }} & TOPS_OF_BYTES) != 0u, x_{{ j }}_{{ g }});
%% endfor
%% endfor
        }
%% endif
%% if AHEAD
%% for j in batch
%% for i in range(KEY_QUADS // QUADS)
        key_{{ j }}_{{ i }} = key[{{ share("key", "next_%d" % j) }} + {{ piece("key", i) }}];
%% endfor
%% endfor
%% endif

        // The exchange; what cannot be halved is added by both sides.
%% for step in steps
%% set at = loop.index0
%% for j in range(step.keys)
%% for g in range(step.heads)
%% set kept = x(at - 1, j, g)
%% set given = x(at - 1, j + step.size, g) if step.kind == "keys" else x(at - 1, j, g + step.size)
%% if step.turned or step.kind == "add"
        let {{ x(at, j, g) }} = {{ kept }} + subgroupShuffleXor({{ given }}, {{ step.mask }}u);
%% else
        let {{ x(at, j, g) }} = select({{ kept }}, {{ given }}, upper_{{ step.mask }}) + subgroupShuffleXor(select({{ given }}, {{ kept }}, upper_{{ step.mask }}), {{ step.mask }}u);
%% endif
%% endfor
%% endfor
%% endfor

        // Without a branch: the compiler may then read values before it has the logits.
%% for m in own_keys
        let own_s_{{ m }} = min(first + own_key + {{ m }}u, keys.y - 1u);
        let own_there_{{ m }} = first + own_key + {{ m }}u < keys.y;
%% if SCALED
%% if AHEAD
        let key_scale_{{ m }} = next_key_scale_{{ m }};
        var value_scale_{{ m }} = next_value_scale_{{ m }};
        let scales_next_{{ m }} = scales_at(b, key_slot(b, min(own_s_{{ m }} + TEAMS * BATCH, keys.y - 1u)), k);
        next_key_scale_{{ m }} = scales[scales_next_{{ m }}];
        next_value_scale_{{ m }} = scales[scales_next_{{ m }} + 1u];
%% else
        let scales_here_{{ m }} = scales_at(b, key_slot(b, own_s_{{ m }}), k);
        let key_scale_{{ m }} = scales[scales_here_{{ m }}];
        var value_scale_{{ m }} = scales[scales_here_{{ m }} + 1u];
%% endif
%% if problem.paged
        value_scale_{{ m }} = select(0.0, value_scale_{{ m }}, key_there(b, own_s_{{ m }}));
%% endif
%% endif
%% for o in own
{% set product = x(steps | length - 1, m, o) %}
{% set product = "own_unit_%d * f32(%s)" % (o, product) if DIGITS else product %}
        let kept_{{ m }}_{{ o }} = logit({{ "key_scale_%d * " % m if SCALED }}{{ product }}, b, min(n_first + own_head + {{ o }}u, n_last), 0u, own_s_{{ m }}, kept);
        let y_{{ m }}_{{ o }} = select(MASKED, kept_{{ m }}_{{ o }}, own_there_{{ m }});
%% endfor
%% endfor

        // A maximum is followed where it grew much: sums stay far from overflow, and rescaling is rare.
%% for o in own
        var high_{{ o }} = y_0_{{ o }};
%% for m in own_keys if m
        high_{{ o }} = max(high_{{ o }}, y_{{ m }}_{{ o }});
%% endfor
%% endfor
        if (subgroupAny({% for o in own %}{{ " || " if o }}high_{{ o }} > own_top_{{ o }} + SLACK{% endfor %})) {
%% for o in own
%% for step in steps if step.kind == "keys"
            high_{{ o }} = max(high_{{ o }}, subgroupShuffleXor(high_{{ o }}, {{ step.mask }}u));
%% endfor
            high_{{ o }} = max(high_{{ o }}, own_top_{{ o }});
            own_total_{{ o }} *= decay(own_top_{{ o }}, high_{{ o }});
            own_top_{{ o }} = high_{{ o }};
%% endfor
%% for g in heads
            let high_of_{{ g }} = {{ of_owner("high_%d" % (g % (own | length)), 0, g) }};
            let fade_{{ g }} = decay(top_{{ g }}, high_of_{{ g }});
            top_{{ g }} = high_of_{{ g }};
%% for i in range(VALUE_QUADS)
            sum_{{ g }}_{{ i }} *= fade_{{ g }};
%% endfor
%% endfor
        }
%% for m in own_keys
%% for o in own
        let w_{{ m }}_{{ o }} = weight(y_{{ m }}_{{ o }}, own_top_{{ o }});
        own_total_{{ o }} += w_{{ m }}_{{ o }};
%% if SCALED
        let v_{{ m }}_{{ o }} = w_{{ m }}_{{ o }} * value_scale_{{ m }};
%% endif
%% endfor
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
        let value_at_{{ j }} = {{ share("value", "slot_%d" % j) }};
%% for i in range(VALUE_QUADS // QUADS)
%% if guarded
        var value_{{ j }}_{{ i }} = value[value_at_{{ j }} + {{ piece("value", i) }}];
        if (!there_{{ j }}) {
            value_{{ j }}_{{ i }} = {{ word_type }}();
        }
%% else
        let value_{{ j }}_{{ i }} = value[value_at_{{ j }} + {{ piece("value", i) }}];
%% endif
%% endfor
%% else
        let value_at_{{ j }} = value_row_of(v_rows, b, slot_{{ j }}, k);
%% endif
%% endfor
%% for j in batch
%% for g in heads
        let u_{{ j }}_{{ g }} = {{ of_owner("%s_%d_%d" % ("v" if SCALED else "w", j % (own_keys | length), g % (own | length)), j, g) }};
%% endfor
%% for i in range(VALUE_QUADS)
%% if UNIT
        let four_{{ j }}_{{ i }} = {{ quad("value", j, i) }};
%% if NAN_SEEN
        value_seen_{{ i }} = ones_of_value(value_seen_{{ i }}, {{ word("value", j, i) }});
%% endif
%% else
        let four_{{ j }}_{{ i }} = {{ "select(vec4f(), " if guarded }}load_value(value_at_{{ j }}, lane + {{ i * LANES }}u){{ ", there_%d)" % j if guarded }};
%% endif
%% for g in heads
        sum_{{ g }}_{{ i }} += u_{{ j }}_{{ g }} * four_{{ j }}_{{ i }};
%% endfor
%% endfor
%% endfor
%% if AHEAD
%% for j in batch
%% for i in range(VALUE_QUADS // QUADS)
        value_{{ j }}_{{ i }} = value[{{ share("value", "next_%d" % j) }} + {{ piece("value", i) }}];
%% endfor
%% endfor
%% endif
    }

    // Registers are put in the order of their heads.
%% for step in steps if step.kind == "heads" and step.turned
%% for g in heads if not step.second(g)
%% set other = g + step.size
    if (upper_{{ step.mask }}) {
        let top = top_{{ g }};
        top_{{ g }} = top_{{ other }};
        top_{{ other }} = top;
%% for i in range(VALUE_QUADS)
        let sum_{{ i }} = sum_{{ g }}_{{ i }};
        sum_{{ g }}_{{ i }} = sum_{{ other }}_{{ i }};
        sum_{{ other }}_{{ i }} = sum_{{ i }};
%% endfor
    }
%% endfor
%% endfor

    // The teams' sums are brought to one maximum and added, a head after the other.
%% for o in own
%% for step in steps if step.kind == "keys"
    own_total_{{ o }} += subgroupShuffleXor(own_total_{{ o }}, {{ step.mask }}u);
%% endfor
    if ((lane & {{ team.alike }}u) == 0u) {
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
    let last_{{ g }} = decay(top_{{ g }}, all_{{ g }}){{ " / WIDE" if NAN_SEEN }};
%% for i in range(VALUE_QUADS)
    sums[team * VALUE_CHUNKS + (lane + {{ i // QUADS * LANES }}u) * QUADS + {{ i % QUADS }}u] = {{ "with_nan(value_seen_%d, last_%d * sum_%d_%d)" % (i, g, g, i) if NAN_SEEN else "last_%d * sum_%d_%d" % (g, g, i) }};
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
