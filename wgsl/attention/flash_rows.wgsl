{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% import "shared/texels.wgsl" as texels %}
{% set quads = namespace(query=texels.quads(query_texel) | int, key=texels.quads(key_texel) | int, value=texels.quads(value_texel) | int) %}
{% set key_chunks = HEAD_DIM // 4 %}
{% set query_texels, key_texels = key_chunks // quads.query, (key_chunks + quads.key - 1) // quads.key %}
{% set value_texels = (VALUE_DIM // 4 + quads.value - 1) // quads.value %}
{# How many texels of a key lanes read at once, and what a lane adds to a texel's place. #}
{% set shares = SUBGROUP // KEYS %}
{% set beside = " + share" if shares > 1 else "" %}
{# Whether a key is looked up: its slot and position are its lane's, and handed to the rows by shuffles. #}
{% set found = problem.paged or problem.ring %}
{% set value_chunks = VALUE_DIM // 4 %}
{# The scale of texel d of a stored row: int4 has one a texel, int8 one a row. #}
{% macro scaled(name, d, dtype) -%}
{{ name ~ "_scale_" ~ (d if dtype == "u8" else 0) ~ " * " if dtype in ("u8", "i8") }}
{%- endmacro %}

// Flash, rows in lanes, for CPU adapters: a subgroup owns ROWS · SUBGROUP query rows of one key/value head, the heads
// of its group side by side, and a lane ROWS of them. A turn takes KEYS keys, of which lanes hold SUBGROUP / KEYS
// texels side by side: a lane reads one of one key, and shuffles from constant lanes hand them to all rows. Everything
// but the loop over keys is unrolled over named values: no workgroup memory, no barrier, no array, nothing from a
// storage buffer.

{{ texels.layout() }}
{{ texels.place("query") }}
%% for name in dense_names
{{ texels.dense_place(name) }}
{{ texels.four_of_row(name, {"bias": bias_name, "mask": "bool"}[name]) }}

%% endfor
{{ texels.keys(problem, stored_names, value_texel == "u8") }}
@compute @workgroup_size(SUBGROUP)
fn flash_rows(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var index = folded_index(workgroup, workgroups);
    // Query heads a key/value head: the group, or the share of one that this launch serves.
    let group = min(parameters.N, parameters.G);
    let rows = parameters.T * group;
    let blocks = (rows + ROWS * SUBGROUP - 1u) / (ROWS * SUBGROUP);
    // Threads take runs of workgroups, and late rows keep more keys where the mask is causal: blocks come from both
    // ends by turns.
    let turn = index % blocks;
    let block = select(turn / 2u, blocks - 1u - turn / 2u, turn % 2u == 1u);
    index /= blocks;
    let k = index % (parameters.N / group);
    index /= parameters.N / group;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }

    // The block that is not full has the first rows, which keep the fewest keys of a causal mask.
    let end_row = rows - (blocks - 1u - block) * (ROWS * SUBGROUP);
    let first_row = end_row - min(end_row, ROWS * SUBGROUP);
    let last_row = end_row - 1u;
    let first_key = parameters.key_first + part * parameters.part_keys;
    let end_key = min(first_key + parameters.part_keys, parameters.key_end);
    // Every key of this range is below its sequence's length, and no other is read.
    let keys = block_keys(b, first_row / group, last_row / group, first_key, end_key);
    let scale = query_scale(b);
%% if problem.scales
    let scale_first = first_scale(k);
%% endif
%% if found or problem.empty_rows == "mean"
    let length = key_length(b);
%% endif

%% for name in stored_names
    let {{ name }}_lie = {{ name }}_keys(b, k);
%% endfor

    let column = lane % KEYS;
%% if shares > 1
    let share = lane / KEYS;
%% endif
%% for r in range(ROWS)
    let row_{{ r }} = first_row + {{ r }}u * SUBGROUP + lane;
    let t_{{ r }} = min(row_{{ r }}, last_row) / group;
    let n_{{ r }} = k * group + min(row_{{ r }}, last_row) % group;
    var kept_{{ r }} = kept_keys(b, t_{{ r }});
%% if not found
    kept_{{ r }}.end = min(kept_{{ r }}.end, i32(keys.y));
%% if problem.keys.clauses | length > 1
    kept_{{ r }}.also_end = min(kept_{{ r }}.also_end, i32(keys.y));
%% endif
%% endif
%% if problem.segments
    let segment_{{ r }} = row_query_segments(b, parameters.t_first + t_{{ r }});
%% endif
    // Above MASKED, so that the weight of a masked key is 0 from the first turn on.
    var top_{{ r }} = LOWEST_KEPT;
    var total_{{ r }} = 0.0;
    let query_{{ r }} = query_place(b, t_{{ r }}, n_{{ r }});
%% for name in dense_names
    let {{ name }}_at_{{ r }} = {{ name }}_row_place(b, t_{{ r }}, n_{{ r }});
%% endfor
%% for d in range(query_texels)
    let texel_{{ r }}_{{ d }} = textureLoad(query, vec2u(query_{{ r }}.x + {{ d }}u, query_{{ r }}.y));
%% for i in range(quads.query)
    let q_{{ r }}_{{ d * quads.query + i }} = scale * {{ texels.four("texel_%s_%s" | format(r, d), query_texel, i) }};
%% endfor
%% endfor
%% for c in range(value_chunks)
    var sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endfor

%% if dense_names
    // Turns start at a multiple of four keys, as texels do; for keys before the first one that one is read, and not
    // kept.
    let launch_first = parameters.key_first;
    let start = select(keys.x, keys.x - (keys.x - launch_first) % 4u, keys.x < keys.y);
%% else
    let start = keys.x;
%% endif
{% set own_key = "clamp(tile + column, keys.x, keys.y - 1u)" if dense_names else "min(tile + column, keys.y - 1u)" %}
    for (var tile = start; tile < keys.y; tile += KEYS) {
%% if problem.segments
        // Tiles whose ids no row has are passed by; the last one is worked on in any case.
        var key_segment = row_key_segments(b, {{ own_key }});
        for (; tile + KEYS < keys.y; tile += KEYS) {
            key_segment = row_key_segments(b, {{ own_key }});
            var met = false;
%% for k in range(KEYS)
            let id_{{ k }} = subgroupShuffle(key_segment, {{ k }}u);
            met = met || {% for r in range(ROWS) %}id_{{ k }} == segment_{{ r }}{{ " || " if not loop.last }}{% endfor %};
%% endfor
            if (subgroupAny(met)) {
                break;
            }
        }
        key_segment = row_key_segments(b, {{ own_key }});
%% endif
        let s = {{ own_key }};
%% if found
        let place = find_key(s, find_page(b, s), length);
        let slot = place.slot;
        let own_position = select(NOWHERE, place.position, s == tile + column);
%% if problem.paged
        // What lies where no page is found is anything: a weight of 0 would not do.
        let there = place.position != NOWHERE;
%% endif
%% else
        let slot = s;
%% endif
%% for name in stored_names
        let {{ name }}_at = key_texels({{ name }}_lie, s, slot);
%% endfor
%% for r in range(ROWS)
%% for k in range(KEYS)
        var s_{{ r }}_{{ k }} = 0.0;
%% endfor
%% endfor
%% for d in range(0, key_texels, shares)
        let key_{{ d }} = textureLoad(key, vec2u(key_at.x + {{ d }}u{{ beside }}, key_at.y));
%% if key_texel == "u8" or key_texel == "i8" and d == 0
        let key_scale_{{ d }} = scale_at(scales_at, scale_first{{ " + %su" | format(d) ~ beside if key_texel == "u8" }});
%% endif
%% for i in range(quads.key)
        {
            let four = {{ scaled("key", d, key_texel) }}{{ texels.four("key_%s" | format(d), key_texel, i) }};
%% for c in range(d * quads.key + i, [(d + shares) * quads.key, key_chunks] | min, quads.key)
{% set first = loop.index0 * KEYS %}
%% for k in range(KEYS)
            let k_{{ first + k }} = subgroupShuffle(four, {{ first + k }}u);
%% for r in range(ROWS)
            s_{{ r }}_{{ k }} += dot(q_{{ r }}_{{ c }}, k_{{ first + k }});
%% endfor
%% endfor
%% endfor
        }
%% endfor
%% endfor
%% for k in range(KEYS)
        let position_{{ k }} = {{ "subgroupShuffle(own_position, %su)" | format(k) if found else "i32(tile + %su)" | format(k) }};
%% endfor
%% for r in range(ROWS)
%% for name in dense_names
%% for k in range(0, KEYS, 4)
        let {{ name }}_{{ r }}_{{ k }} = {{ name }}_four({{ name }}_at_{{ r }}, tile - launch_first + {{ k }}u);
%% endfor
%% endfor
%% for k in range(KEYS)
%% for name in dense_names
        let {{ name }}_of_{{ r }}_{{ k }} =
            {{ texels.one_of_row(name, "%s_%s_%s" | format(name, r, k // 4 * 4), k % 4) }};
%% endfor
        let logit_{{ r }}_{{ k }} = logit_at(
            s_{{ r }}_{{ k }}, b, n_{{ r }}, t_{{ r }}, tile + {{ k }}u, position_{{ k }}, kept_{{ r }}
            {%- for name in dense_names %}, {{ name }}_of_{{ r }}_{{ k }}{% endfor %}

        );
%% if problem.segments
        let same_{{ r }}_{{ k }} = segment_{{ r }} == subgroupShuffle(key_segment, {{ k }}u);
        let x_{{ r }}_{{ k }} = select(MASKED, logit_{{ r }}_{{ k }}, same_{{ r }}_{{ k }});
%% else
        let x_{{ r }}_{{ k }} = logit_{{ r }}_{{ k }};
%% endif
%% endfor
        var high_{{ r }} = top_{{ r }};
%% for k in range(0, KEYS, 2)
        high_{{ r }} = max(high_{{ r }}, max(x_{{ r }}_{{ k }}, x_{{ r }}_{{ k + 1 }}));
%% endfor
        let fade_{{ r }} = decay(top_{{ r }}, high_{{ r }});
        top_{{ r }} = high_{{ r }};
%% for k in range(KEYS)
        let p_{{ r }}_{{ k }} = decay(x_{{ r }}_{{ k }}, high_{{ r }});
%% endfor
        var added_{{ r }} = p_{{ r }}_0 + p_{{ r }}_1;
%% for k in range(2, KEYS, 2)
        added_{{ r }} += p_{{ r }}_{{ k }} + p_{{ r }}_{{ k + 1 }};
%% endfor
        total_{{ r }} = total_{{ r }} * fade_{{ r }} + added_{{ r }};
%% endfor
%% for d in range(0, value_texels, shares)
        let value_{{ d }} = textureLoad(value, vec2u(value_at.x + {{ d }}u{{ beside }}, value_at.y));
%% if value_texel == "u8" or value_texel == "i8" and d == 0
        let value_scale_{{ d }} =
            scale_at(scales_at, scale_first + key_scales(){{ " + %su" | format(d) ~ beside if value_texel == "u8" }});
%% endif
%% for i in range(quads.value)
        {
{% set four = scaled("value", d, value_texel) ~ texels.four("value_%s" | format(d), value_texel, i) %}
            let four = {{ "select(vec4f(), %s, there)" | format(four) if problem.paged else four }};
            // A turn is summed by itself first: over many keys that keeps the rounding of the long sum small.
%% for c in range(d * quads.value + i, [(d + shares) * quads.value, value_chunks] | min, quads.value)
{% set first = loop.index0 * KEYS %}
            let v_{{ first }} = subgroupShuffle(four, {{ first }}u);
%% for r in range(ROWS)
            var z_{{ r }}_{{ c }} = p_{{ r }}_0 * v_{{ first }};
%% endfor
%% for k in range(1, KEYS)
            let v_{{ first + k }} = subgroupShuffle(four, {{ first + k }}u);
%% for r in range(ROWS)
            z_{{ r }}_{{ c }} += p_{{ r }}_{{ k }} * v_{{ first + k }};
%% endfor
%% endfor
%% for r in range(ROWS)
            sum_{{ r }}_{{ c }} = sum_{{ r }}_{{ c }} * fade_{{ r }} + z_{{ r }}_{{ c }};
%% endfor
%% endfor
        }
%% endfor
%% endfor
    }

%% for r in range(ROWS)
%% if not PARTIAL
    let end_{{ r }} = row_end(top_{{ r }}, total_{{ r }}, b, t_{{ r }}, n_{{ r }});
%% endif
%% if problem.empty_rows == "mean"
%% if not PARTIAL
    let empty_{{ r }} = end_{{ r }}.empty;
%% elif problem.dense
    let empty_{{ r }} = total_{{ r }} == 0.0;
%% else
    let empty_{{ r }} = total_{{ r }} == 0.0 && range_is_empty(kept_keys(b, t_{{ r }}));
%% endif
%% endif
%% endfor
%% if problem.empty_rows == "mean"
    // Rows that keep no key are the mean of V: lanes sum a key each. The loop makes no turn where no row needs it; a
    // branch would run masked.
    let needed = subgroupAny({% for r in range(ROWS) %}empty_{{ r }}{{ " || " if not loop.last }}{% endfor %});
    let end_mean = select(first_key, end_key, needed);
%% for c in range(value_chunks)
    var mean_{{ c }} = vec4f();
%% endfor
    for (var s = first_key; s < end_mean; s += SUBGROUP) {
        let there = s + lane < end_key;
        let own = min(s + lane, end_key - 1u);
        let slot = find_key(own, find_page(b, own), length).slot;
        let at = key_texels(value_lie, own, slot);
%% if problem.scales
        let scales_at = key_texels(scales_lie, own, slot);
%% endif
%% for d in range(value_texels)
        let texel_{{ d }} = textureLoad(value, vec2u(at.x + {{ d }}u, at.y));
%% if value_texel == "u8" or value_texel == "i8" and d == 0
        let value_scale_{{ d }} = scale_at(scales_at, scale_first + key_scales() + {{ d }}u);
%% endif
%% for i in range(quads.value)
{% set c = d * quads.value + i %}
%% if c < value_chunks
        let four_{{ c }} = {{ scaled("value", d, value_texel) }}{{ texels.four("texel_%s" | format(d), value_texel, i) }};
        mean_{{ c }} += select(vec4f(), four_{{ c }}, there);
%% endif
%% endfor
%% endfor
    }
%% for c in range(value_chunks)
%% for step in xor_steps
    mean_{{ c }} += subgroupShuffleXor(mean_{{ c }}, {{ step }}u);
%% endfor
%% endfor

%% endif
%% for r in range(ROWS)
    if (row_{{ r }} <= last_row) {
%% if PARTIAL
        let at_{{ r }} = partial_row(part, b, t_{{ r }}, n_{{ r }});
%% for c in range(value_chunks)
%% if problem.empty_rows == "mean"
        partial[at_{{ r }} + {{ c }}u] = select(sum_{{ r }}_{{ c }}, mean_{{ c }}, empty_{{ r }});
%% else
        partial[at_{{ r }} + {{ c }}u] = sum_{{ r }}_{{ c }};
%% endif
%% endfor
%% else
        let at_{{ r }} = out_row(b, t_{{ r }}, n_{{ r }});
%% for c in range(value_chunks)
        let o_{{ r }}_{{ c }} = select(sum_{{ r }}_{{ c }} * end_{{ r }}.factor, vec4f(), end_{{ r }}.zero);
%% if problem.empty_rows == "mean"
        store_out(at_{{ r }}, {{ c }}u, select(o_{{ r }}_{{ c }}, mean_{{ c }} / f32(parameters.S), empty_{{ r }}));
%% else
        store_out(at_{{ r }}, {{ c }}u, o_{{ r }}_{{ c }});
%% endif
%% endfor
%% endif
        finish_row(part, b, t_{{ r }}, n_{{ r }}, top_{{ r }}, total_{{ r }});
    }
%% endfor
}
