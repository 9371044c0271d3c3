{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% import "shared/texels.wgsl" as texels %}
{% set head_chunks, value_chunks = HEAD_DIM // 4, VALUE_DIM // 4 %}
{# Quads a texel, and texels of a streamed row that one lane reads. #}
{% set own_head_quads, own_value_quads = 1 if own_head_texel == "f32" else 2, 1 if own_value_texel == "f32" else 2 %}
{% set head_quads, value_quads = 1 if head_texel == "f32" else 2, 1 if value_texel == "f32" else 2 %}
{% set head_per, value_per = head_chunks // head_quads // HEAD_SHARES, value_chunks // value_quads // VALUE_SHARES %}

// Lanes, for CPU adapters: a subgroup owns ROWS · SUBGROUP rows of one side, a lane ROWS of them, and passes over the
// other side ITEMS rows a turn.
%% if BY == "query"
// Its own are query rows of one key/value head, the heads of its group side by side: q and grad_out. Keys stream by.
// It adds up the query's gradient, unscaled.
%% else
// Its own are keys of one key/value head: K and V. The query rows of all heads of the group stream by. It adds up the
// key's and the value's gradients.
%% endif
// Lane l reads of streamed row l % ITEMS the share l / ITEMS, from textures, and shuffles from constant lanes hand it
// to all. Everything but the loop over turns is unrolled over named values: no workgroup memory, no barrier, no array.

{{ texels.layout() }}
%% for name in ("query", "key", "value", "grad_out")
{{ texels.place(name) }}
%% endfor
%% for name in dense_names
{{ texels.dense_place(name) }}
{{ texels.four_of_row(name, {"bias": bias_name, "mask": "bool"}[name]) }}

{{ texels.any_of_row(name) }}

%% endfor
{# A lane's own row of one operand, which starts at {to}_at_{r}, as quads named {to}_{r}_{chunk}. #}
{% macro own_row(to, operand, texel, each, chunks, r, factor) %}
%% for d in range(chunks // each)
    let {{ to }}_texel_{{ r }}_{{ d }} = textureLoad({{ operand }}, {{ to }}_at_{{ r }} + vec2u({{ d }}u, 0u));
%% for i in range(each)
    let {{ to }}_{{ r }}_{{ d * each + i }} = {{ factor }}{{ texels.four("%s_texel_%s_%s" | format(to, r, d), texel, i) }};
%% endfor
%% endfor
{% endmacro %}
{# A lane's share of a streamed row, which starts at {to}_at, as texels named {to}_{d}. #}
{% macro streamed(to, operand, per) %}
%% for d in range(per)
        let {{ to }}_{{ d }} = textureLoad({{ operand }}, {{ to }}_at + vec2u({{ to }}_share + {{ d }}u, 0u));
%% endfor
{% endmacro %}
{# {sum}_{r}_{j} += own row · streamed row, over all dims. #}
{% macro products(sum, own, to, texel, each, per, shares) %}
%% for d in range(per)
%% for share in range(shares)
%% for i in range(each)
        {
            let four = {{ texels.four("%s_%s" | format(to, d), texel, i) }};
%% for j in range(ITEMS)
            let x_{{ j }} = subgroupShuffle(four, {{ share * ITEMS + j }}u);
%% for r in range(ROWS)
            {{ sum }}_{{ r }}_{{ j }} += dot({{ own }}_{{ r }}_{{ (share * per + d) * each + i }}, x_{{ j }});
%% endfor
%% endfor
        }
%% endfor
%% endfor
%% endfor
{% endmacro %}
{# {sums}_{r}_{chunk} += factor · streamed row, over a turn's rows. #}
{% macro add_products(sums, factor, to, texel, each, per, shares) %}
%% for d in range(per)
%% for share in range(shares)
%% for i in range(each)
{% set chunk = (share * per + d) * each + i %}
        {
            let four = {{ texels.four("%s_%s" | format(to, d), texel, i) }};
%% for r in range(ROWS)
            var z_{{ r }} = {{ sums }}_{{ r }}_{{ chunk }};
%% endfor
%% for j in range(ITEMS)
            let x_{{ j }} = subgroupShuffle(four, {{ share * ITEMS + j }}u);
%% for r in range(ROWS)
            z_{{ r }} += {{ factor }}_{{ r }}_{{ j }} * x_{{ j }};
%% endfor
%% endfor
%% for r in range(ROWS)
            {{ sums }}_{{ r }}_{{ chunk }} = z_{{ r }};
%% endfor
        }
%% endfor
%% endfor
%% endfor
{% endmacro %}
// The weight of a logit and the gradient by the scaled score, without a branch; both 0 where the key is not kept,
// whatever lies there.
fn weigh(x: f32, scaled: f32, by_weight: f32, row: Statistics) -> vec2f {
%% if NATURAL
    let p = exp2(((x - row.top) - row.rest) * LOG2_E);
%% else
    let p = decay(x, row.top);
%% endif
    var by_score = p * (by_weight - row.delta);
%% if problem.softcap
    let bent = tanh_exact(scaled / parameters.softcap);
    by_score *= 1.0 - bent * bent;
%% endif
    return select(vec2f(p, by_score), vec2f(), x == MASKED);
}

%% if BY == "key_value"
fn statistics_at(row: u32) -> Statistics {
    let at = parameters.statistics_at + row * STATISTICS;
%% if NATURAL
    return Statistics(bitcast<f32>(rows[at]), bitcast<f32>(rows[at + 1u]), bitcast<f32>(rows[at + 2u]));
%% else
    return Statistics(bitcast<f32>(rows[at]), bitcast<f32>(rows[at + 1u]));
%% endif
}

%% if problem.group > 1
// n / d without an integer division, which a CPU adapter makes lane by lane: off by one at most, and set right.
fn divided(n: u32, d: u32) -> u32 {
    let near = u32(f32(n) / f32(d));
    let left = i32(n - near * d);
    return near + select(0u, 1u, left >= i32(d)) - select(0u, 1u, left < 0);
}

%% endif
%% endif
@compute @workgroup_size(SUBGROUP)
fn lanes_{{ BY }}(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    var index = folded_index(workgroup, workgroups);
    let heads = key_heads();
    let sharing = sharing_heads();
%% if BY == "query"
    let count = parameters.T * sharing;
%% else
    let count = parameters.key_end - parameters.key_first;
%% endif
    let blocks = (count + ROWS * SUBGROUP - 1u) / (ROWS * SUBGROUP);
    // Threads take runs of workgroups, and under a causal mask blocks have more work towards one end: they come from
    // both ends by turns.
    let turn = index % blocks;
    let block = select(turn / 2u, blocks - 1u - turn / 2u, turn % 2u == 1u);
    index /= blocks;
    let k = index % heads;
    let b = index / heads;
    if (b >= parameters.batch) {
        return;
    }
    let first_own = block * (ROWS * SUBGROUP);
    let last_own = min(first_own + ROWS * SUBGROUP, count) - 1u;
    let scale = query_scale(b);
    let head_share = lane / ITEMS % {{ HEAD_SHARES }}u * {{ head_per }}u;
    let value_share = lane / ITEMS % {{ VALUE_SHARES }}u * {{ value_per }}u;
%% if BY == "query"
    // Every key of this range is below its sequence's length, and no other is read.
    let keys = block_keys(b, first_own / sharing, last_own / sharing, parameters.key_first, parameters.key_end);
    let first = keys.x;
    let end = keys.y;
%% else
    let asked = query_rows(b, parameters.key_first + first_own, parameters.key_first + last_own + 1u);
    // Items are rows with their heads: item i is head i % sharing of row asked.x + i / sharing.
    let first = 0u;
    let end = (asked.y - asked.x) * sharing;
%% endif

%% for r in range(ROWS)
    let row_{{ r }} = first_own + {{ r }}u * SUBGROUP + lane;
%% if BY == "query"
    let t_{{ r }} = min(row_{{ r }}, last_own) / sharing;
    let n_{{ r }} = k * sharing + min(row_{{ r }}, last_own) % sharing;
    var kept_{{ r }} = kept_keys(b, t_{{ r }});
    kept_{{ r }}.end = min(kept_{{ r }}.end, i32(end));
%% if problem.keys.clauses | length > 1
    kept_{{ r }}.also_end = min(kept_{{ r }}.also_end, i32(end));
%% endif
    let statistics_{{ r }} = statistics_of(b, t_{{ r }}, n_{{ r }});
%% if problem.segments
    let segment_{{ r }} = row_query_segments(b, parameters.t_first + t_{{ r }});
%% endif
%% for name in dense_names
    let {{ name }}_at_{{ r }} = {{ name }}_row_place(b, t_{{ r }}, n_{{ r }});
%% endfor
    let own_head_at_{{ r }} = query_place(b, t_{{ r }}, n_{{ r }});
    let own_value_at_{{ r }} = grad_out_place(b, t_{{ r }}, n_{{ r }});
{{ own_row("own_head", "query", own_head_texel, own_head_quads, head_chunks, r, "scale * ") }}
{{ own_row("own_value", "grad_out", own_value_texel, own_value_quads, value_chunks, r, "") }}
%% else
    let s_{{ r }} = parameters.key_first + min(row_{{ r }}, last_own);
%% if problem.segments
    let segment_{{ r }} = row_key_segments(b, s_{{ r }});
%% endif
    let own_head_at_{{ r }} = key_place(b, s_{{ r }} - parameters.key_first, k);
    let own_value_at_{{ r }} = value_place(b, s_{{ r }} - parameters.key_first, k);
{{ own_row("own_head", "key", own_head_texel, own_head_quads, head_chunks, r, "scale * ") }}
{{ own_row("own_value", "value", own_value_texel, own_value_quads, value_chunks, r, "") }}
%% for c in range(value_chunks)
    var value_sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endif
%% for c in range(head_chunks)
    var head_sum_{{ r }}_{{ c }} = vec4f();
%% endfor
%% endfor

    // What is read of parameters before the loop is not read in each turn.
%% if BY == "query"
    let head_lie = key_layout(b, k);
    let value_lie = value_layout(b, k);
    let first_key = parameters.key_first;
%% else
%% for name in dense_names
    let {{ name }}_lie = {{ name }}_layout(b * parameters.{{ name }}_entry_b, 0u);
    let {{ name }}_rows_n = parameters.{{ name }}_entry_n * parameters.{{ name }}_rows;
%% endfor
    let first_key = parameters.key_first;
    let head_lie = query_layout(b, 0u);
    let value_lie = grad_out_layout(b, 0u);
    let first_row = row_of(b, 0u, 0u);
    let heads_all = parameters.N_all;
%% endif
    for (var tile = first; tile < end; tile += ITEMS) {
%% if problem.segments
        // Turns whose ids no own row has are passed by; the last one is worked on in any case.
        var segment = 0u;
        for (; tile + ITEMS < end; tile += ITEMS) {
%% if BY == "query"
            segment = row_key_segments(b, tile + lane % ITEMS);
%% else
            segment = row_query_segments(b, parameters.t_first + asked.x + (tile + lane % ITEMS) / sharing);
%% endif
            var met = false;
%% for j in range(ITEMS)
            let id_{{ j }} = subgroupShuffle(segment, {{ j }}u);
%% for r in range(ROWS)
            met = met || id_{{ j }} == segment_{{ r }};
%% endfor
%% endfor
            if (subgroupAny(met)) {
                break;
            }
        }
%% endif
        let item = min(tile + lane % ITEMS, end - 1u);
%% if BY == "query"
%% if problem.segments
        segment = row_key_segments(b, item);
%% endif
        let head_at = place_in(head_lie, item - first_key);
        let value_at = place_in(value_lie, item - first_key);
{{ streamed("head", "key", head_per) }}
{{ streamed("value", "value", value_per) }}
%% else
{% if problem.group == 1 %}
        let t = asked.x + item;
        let n = k;
{% else %}
        let row = divided(item, sharing);
        let t = asked.x + row;
        let n = k * sharing + item - row * sharing;
{% endif %}
%% if problem.segments
        segment = row_query_segments(b, parameters.t_first + t);
%% endif
        let statistics = statistics_at(first_row + t * heads_all + n);
        var kept = kept_keys(b, t);
        let there = tile + lane % ITEMS < end;
        kept.end = select(0, kept.end, there);
%% if problem.keys.clauses | length > 1
        kept.also_end = select(0, kept.also_end, there);
%% endif
%% for name in dense_names
        var {{ name }}_of = {{ name }}_lie;
        {{ name }}_of.row += n * {{ name }}_rows_n;
        let {{ name }}_at = place_in({{ name }}_of, t) + vec2u(n * {{ name }}_lie.head, 0u);
%% endfor
        let head_at = place_in(head_lie, t) + vec2u(n * head_lie.head, 0u);
        let value_at = place_in(value_lie, t) + vec2u(n * value_lie.head, 0u);
{{ streamed("head", "query", head_per) }}
{{ streamed("value", "grad_out", value_per) }}
%% endif
%% for r in range(ROWS)
%% for j in range(ITEMS)
        var product_{{ r }}_{{ j }} = 0.0;
        var by_weight_{{ r }}_{{ j }} = 0.0;
%% endfor
%% endfor
{{ products("product", "own_head", "head", head_texel, head_quads, head_per, HEAD_SHARES) }}
{{ products("by_weight", "own_value", "value", value_texel, value_quads, value_per, VALUE_SHARES) }}
%% for j in range(ITEMS)
%% if BY == "key_value"
        var statistics_{{ j }} = statistics;
%% for field in ("top", "delta", "rest") if field != "rest" or NATURAL
        statistics_{{ j }}.{{ field }} = subgroupShuffle(statistics.{{ field }}, {{ j }}u);
%% endfor
        var kept_{{ j }} = kept;
%% for field in ("first", "end", "also_first", "also_end") if "also" not in field or problem.keys.clauses | length > 1
        kept_{{ j }}.{{ field }} = subgroupShuffle(kept.{{ field }}, {{ j }}u);
%% endfor
        let t_{{ j }} = subgroupShuffle(t, {{ j }}u);
        let n_{{ j }} = subgroupShuffle(n, {{ j }}u);
%% for name in dense_names
        let {{ name }}_at_{{ j }} = subgroupShuffle({{ name }}_at, {{ j }}u);
%% endfor
%% endif
%% if problem.segments
        let segment_of_{{ j }} = subgroupShuffle(segment, {{ j }}u);
%% endif
%% for r in range(ROWS)
{% set row, key = (r, "tile + %su" | format(j)) if BY == "query" else (j, "s_%s" | format(r)) %}
        let score_{{ r }}_{{ j }} = product_{{ r }}_{{ j }};
        var x_{{ r }}_{{ j }} = logit(
            score_{{ r }}_{{ j }}, b, n_{{ row }}, t_{{ row }}, {{ key }}, kept_{{ row }}
            {%- for name in dense_names %}, {{ name }}_one({{ name }}_at_{{ row }}, {{ key }} - first_key){% endfor %}

        );
%% if problem.segments
        x_{{ r }}_{{ j }} = select(MASKED, x_{{ r }}_{{ j }}, segment_{{ r }} == segment_of_{{ j }});
%% endif
        let share_{{ r }}_{{ j }} = weigh(x_{{ r }}_{{ j }}, score_{{ r }}_{{ j }}, by_weight_{{ r }}_{{ j }}, statistics_{{ row }});
        let weight_{{ r }}_{{ j }} = share_{{ r }}_{{ j }}.x;
        let by_score_{{ r }}_{{ j }} = share_{{ r }}_{{ j }}.y;
%% endfor
%% endfor
{{ add_products("head_sum", "by_score", "head", head_texel, head_quads, head_per, HEAD_SHARES) }}
%% if BY == "key_value"
{{ add_products("value_sum", "weight", "value", value_texel, value_quads, value_per, VALUE_SHARES) }}
%% endif
    }

%% for r in range(ROWS)
    if (row_{{ r }} <= last_own) {
%% if BY == "query"
        let at_{{ r }} = query_sums(b, t_{{ r }}, n_{{ r }});
%% if problem.query_lengths
        // Rows past the query length have no gradient, whatever lies in them.
        let live_{{ r }} = is_live(b, t_{{ r }});
%% endif
%% for c in range(head_chunks)
%% if problem.query_lengths
        add_sum(at_{{ r }} + {{ c }}u, select(vec4f(), head_sum_{{ r }}_{{ c }}, live_{{ r }}));
%% else
        add_sum(at_{{ r }} + {{ c }}u, head_sum_{{ r }}_{{ c }});
%% endif
%% endfor
%% else
        let at_{{ r }} = key_value_sums(b, parameters.key_first + row_{{ r }}, k);
%% for c in range(head_chunks)
        add_sum(at_{{ r }} + {{ c }}u, head_sum_{{ r }}_{{ c }});
%% endfor
%% for c in range(value_chunks)
        add_sum(at_{{ r }} + {{ head_chunks + c }}u, value_sum_{{ r }}_{{ c }});
%% endfor
%% endif
    }
%% endfor
}
