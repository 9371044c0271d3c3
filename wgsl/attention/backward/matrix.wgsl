{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}
{% import "attention/backward/matrix_tiles.wgsl" as tiles with context %}

// On matrix units: a workgroup owns OWN rows of one side and passes over the other side STREAM rows a step, STAGED rows
// at a time.
%% if BY == "query"
// Its own are query rows of one head, q and grad_out; K and V stream by. It adds up the query's gradient.
%% else
// Its own are keys of one key/value head, K and V; q and grad_out of all heads of the group stream by. It adds up the
// key's and value's gradients.
%% endif
// "Head" rows have head_dim elements (q or K), "value" rows value_dim (grad_out or V). A subgroup owns BLOCKS blocks of
// 16 rows and multiplies what streams by with them: scores, and gradients by weights. No lane sees a matrix's elements:
// both go through workgroup memory, where lane l has query row l % 16 of 16, and of each 16 keys the eight of its half.
// There they become weights and gradients by scores, in float16, and are multiplied with the streamed rows once more.
// Pitches are odd, and a matrix of scores has a key a row and is stored by columns: lanes meet no bank conflict.
// Weights are WEIGHT_SIZE times as large, so that those of long rows stay normal float16. Gradients by scores have a
// factor by the largest that they can be, in the sweep by query each row by its own grad_out: it may be of any size.
%% if KEPT
// Gradients by scores are kept, too, in tiles of 16 rows and 16 keys, for matrix_query.wgsl.
%% endif
{# A long file: its parts are of one loop, and share matrices by name. #}
{% set blocks = range(BLOCKS) %}
{% set columns = range(STREAM_BLOCKS) %}
{% set head_steps = range(HEAD_STEPS) %}
{# Of grad_out and V no sum is made by query. #}
{% set value_steps = range(VALUE_STEPS) if BY == "key_value" else () %}
{# By query each row has a factor of its own. #}
{% macro factor(r) %}{{ "factor_%d" % r if BY == "query" else "factor" }}{% endmacro %}
{# What orders the lanes' writes before their reads. Lanes of a subgroup go through the same code together. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{# The same number of the lane that has the other half of a row. #}
{% macro other_half(value) %}{{ "other_half(thread, " ~ value ~ ")" if EMULATED else "subgroupShuffleXor(" ~ value ~ ", 16u)" }}{% endmacro %}
{# Logits that are scaled products: a tile that every own row keeps is not masked. And where ranges say which keys a row
   keeps, other tiles are masked after the same arithmetic. #}
{% set unbent = problem.bias is none and not problem.mask and not problem.softcap %}
{% set ranged = unbent and not problem.segments and not problem.ring and not problem.paged %}
{# Whether rows of a tile have any pairs with the subgroup's own. #}
{% macro own(tile) %}{{ "true" if EMULATED else "%s < own_span.y && %s + STREAM > own_span.x" % (tile, tile) }}{% endmacro %}

{# Matrices through workgroup memory, into the words `first` of rows, and back as eight numbers a lane. #}
{% macro exchanged(name, lane, first, factor="") %}
%% for r in blocks
%% for t in columns
            {{ settle() }}
            {{ matrices.store("exchange", "exchange_at + %du" % first, "SCORE_PITCH", "%s_%d_%d" % (name, r, t), "col_major") }};
            {{ settle() }}
%% for i in range(2)
            var {{ lane }}_{{ r }}_{{ t }}_{{ i }} = {{ factor }}bitcast<vec4f>(exchange[own_scores + {{ first + i }}u]);
%% endfor
%% endfor
%% endfor
{% endmacro %}

{# Numbers of lanes as float16 into the words `first` of their rows, and back as matrices. #}
{% macro factors(lane, name, first) %}
%% for r in blocks
            {{ settle() }}
%% for t in columns
            exchange[own_factors + {{ first + 2 * t }}u] = eight({{ lane }}_{{ r }}_{{ t }}_0, {{ lane }}_{{ r }}_{{ t }}_1);
%% endfor
            {{ settle() }}
%% for t in columns
            let {{ name }}_{{ r }}_{{ t }} = {{ matrices.load("left", "exchange", "exchange_at + %du" % (first + 2 * t), "SCORE_PITCH", "row_major" if BY == "query" else "col_major") }};
%% endfor
%% endfor
{% endmacro %}

{# Gradients by scores to where matrix_query.wgsl finds them. #}
{% macro kept_scores() %}
%% for r in blocks
%% for t in columns
            if (tile + {{ 16 * t }}u < parameters.T && from_own + {{ 16 * r }}u < own_end) {
                scores[scores_at(b, n, tile + {{ 16 * t }}u, from_own + {{ 16 * r }}u) + 2u * row + half] = eight(d_{{ r }}_{{ t }}_0, d_{{ r }}_{{ t }}_1);
            }
%% endfor
%% endfor
{% endmacro %}

{# Pairs that are not kept get `to`. #}
{% macro masked(lane, to, when) %}
            {{ when }}{
%% for r in blocks
%% for t in columns
%% for i in range(2)
                {{ lane }}_{{ r }}_{{ t }}_{{ i }} = select(vec4f({{ to }}), {{ lane }}_{{ r }}_{{ t }}_{{ i }}, paired({{ "tile + %du" % (16 * t + 4 * i) if BY == "query" else "from_own + %du" % (16 * r + 4 * i) }} + 8u * half, {{ "tile_end, kept_%d" % r if BY == "query" else "pair_end_%d, kept_%d" % (t, t) }}));
%% endfor
%% endfor
%% endfor
            }
{% endmacro %}

{# A step where logits are scaled products; `when` says when pairs are masked. #}
{% macro swift(when=none) %}
            {{ tiles.products("score", "head", HEAD_STEPS, "HEAD_PITCH") }}
            {{ tiles.products("gradient", "value", VALUE_STEPS, "VALUE_PITCH") }}
            {{ exchanged("score", "p", 0, "scale * ") }}
            {{ exchanged("gradient", "d", 4) }}
            {{ masked("p", "MASKED", when) if when is not none }}
%% for r in blocks
%% for t in columns
%% for i in range(2)
            p_{{ r }}_{{ t }}_{{ i }} = exp2(p_{{ r }}_{{ t }}_{{ i }} - {{ "top_%d" % (r if BY == "query" else t) }});
%% endfor
%% endfor
%% endfor
            {{ factors("p", "weight", 0) if BY == "key_value" }}
            {{ tiles.add_products("value_sum", "weight", "value_tile", value_steps, "VALUE_PITCH") }}
            {{ masked("d", "", when) if when is not none }}
%% for r in blocks
%% for t in columns
%% for i in range(2)
            d_{{ r }}_{{ t }}_{{ i }} = p_{{ r }}_{{ t }}_{{ i }} * ({{ factor(r) }} * d_{{ r }}_{{ t }}_{{ i }} - {{ "delta_%d" % (r if BY == "query" else t) }});
%% endfor
%% endfor
%% endfor
            {{ kept_scores() if KEPT }}
            {{ factors("d", "by_score", 4) }}
            {{ tiles.add_products("head_sum", "by_score", "head_tile", head_steps, "HEAD_PITCH") }}
{% endmacro %}

{# Any step: a pair after another, in place, since a lane reads and writes its own elements alone. #}
{% macro careful() %}
            {{ tiles.products("score", "head", HEAD_STEPS, "HEAD_PITCH") }}
            {{ tiles.products("gradient", "value", VALUE_STEPS, "VALUE_PITCH") }}
%% for r in blocks
%% for t in columns
            {{ settle() }}
            {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "score_%d_%d" % (r, t), "col_major") }};
            {{ matrices.store("exchange", "exchange_at + 4u", "SCORE_PITCH", "gradient_%d_%d" % (r, t), "col_major") }};
            {{ settle() }}
            for (var i = 0u; i < 8u; i++) {
                let at = own_scores + i / 4u;
                let product = bitcast<f32>(exchange[at][i % 4u]);
                let by_weight = bitcast<f32>(exchange[at + 4u][i % 4u]);
                var share = Share(0.0, 0.0, 0.0);
%% if BY == "query"
                let s = tile + {{ 16 * t }}u + 8u * half + i;
                if (s < tile_end && there_{{ r }}) {
                    share = share_of(product, by_weight, b, n, t_{{ r }}, s, kept_{{ r }}, statistics_{{ r }});
                }
%% else
                let s = from_own + {{ 16 * r }}u + 8u * half + i;
                if (s < pair_end_{{ t }}) {
                    share = share_of(product, by_weight, b, n, t_{{ t }}, s, kept_{{ t }}, statistics_{{ t }});
                }
%% endif
                exchange[at][i % 4u] = bitcast<u32>(WEIGHT_SIZE * share.weight);
                exchange[at + 4u][i % 4u] = bitcast<u32>(WEIGHT_SIZE * {{ factor(r) }} * share.score);
            }
%% for i in range(2)
            let p_{{ r }}_{{ t }}_{{ i }} = bitcast<vec4f>(exchange[own_scores + {{ i }}u]);
            let d_{{ r }}_{{ t }}_{{ i }} = bitcast<vec4f>(exchange[own_scores + {{ 4 + i }}u]);
%% endfor
%% endfor
%% endfor
            {{ factors("p", "weight", 0) if BY == "key_value" }}
            {{ factors("d", "by_score", 4) }}
            {{ tiles.add_products("head_sum", "by_score", "head_tile", head_steps, "HEAD_PITCH") }}
            {{ tiles.add_products("value_sum", "weight", "value_tile", value_steps, "VALUE_PITCH") }}
{% endmacro %}

{% include "attention/backward/matrix_sizes.wgsl" %}
// STAGED · HEAD_PITCH · 16 bytes; at first own rows, by turns
var<workgroup> head_tile: array<vec4u, STAGED * HEAD_PITCH>;
// STAGED · VALUE_PITCH · 16 bytes
var<workgroup> value_tile: array<vec4u, STAGED * VALUE_PITCH>;
// SUBGROUPS · EXCHANGE · 16 bytes: 16 scores and gradients by weights a row, or sums; then what these become
var<workgroup> exchange: array<vec4u, SUBGROUPS * EXCHANGE>;
%% if BY == "key_value"
// STAGED · 8 bytes: a streamed row's residual, less WEIGHT_BITS, and its delta times the factor
var<workgroup> streamed_statistics: array<vec2f, STAGED>;
%% endif
%% if EMULATED
// WORKGROUP · 4 bytes
var<workgroup> halves: array<f32, WORKGROUP>;

fn other_half(thread: u32, value: f32) -> f32 {
    workgroupBarrier();
    halves[thread] = value;
    workgroupBarrier();
    return halves[thread ^ 16u];
}

%% endif
{{ matrices.emulation(("head_tile", "value_tile", "exchange"), ("head_tile", "value_tile"), (), ("exchange",)) }}
%% if problem.segments
{% include "attention/segment_ranges.wgsl" %}

// The first tile from `from_tile` on that may have rows of the own rows' segments, or `end`; and its segments.
fn next_tile(b: u32, from_tile: u32, end: u32, own_ids: vec2i, ids: ptr<function, vec2i>) -> u32 {
    for (var tile = from_tile; tile < end; tile += STAGED) {
        let here = {{ "key_segment_range(b, tile, min(tile + STAGED, end))" if BY == "query" else "query_segment_range(b, tile, min(tile + STAGED, end) - 1u)" }};
        if (here.x <= own_ids.y && here.y >= own_ids.x) {
            *ids = here;
            return tile;
        }
    }
    return end;
}

%% endif
{{ tiles.comparing() }}
%% if ranged
// Which of four keys from `first` on a row keeps.
fn paired(first: u32, end: u32, kept: Kept) -> vec4<bool> {
    var made = vec4<bool>();
%% for i in range(4)
    made[{{ i }}] = first + {{ i }}u < end && in_range(kept, i32(first + {{ i }}u));
%% endfor
    return made;
}

%% endif
@compute @workgroup_size(WORKGROUP)
fn matrix(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    let subgroup = thread / 32u;
    let row = thread % 16u;
    let half = thread % 32u / 16u;
    let exchange_at = subgroup * EXCHANGE;
    let own_scores = exchange_at + row * SCORE_PITCH + 2u * half;
    let own_factors = exchange_at + row * SCORE_PITCH + half;
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif
%% if BY == "query"
    let own_live = min(own_end, max(query_length(b), parameters.t_first) - parameters.t_first);
%% else
    var n = k * sharing;
    let own_live = own_end;
%% endif
    // The subgroup's own rows, and what they may have pairs with.
    let from_own = first_own + subgroup * BLOCKS * 16u;
    let to_own = min(from_own + BLOCKS * 16u, own_end);
    var own_span = vec2u();
    if (from_own < to_own) {
        own_span = {{ "block_keys(b, from_own, to_own - 1u, parameters.key_first, parameters.key_end)" if BY == "query" else "query_rows(b, from_own, to_own)" }};
    }
    {{ tiles.hold_own() }}
    let largest = largest_of(b, k);
%% if BY == "key_value"
    // Of a row's delta every key has a share, so that its own V says nothing.
    let factor = factor_for(largest.y, largest.x);
%% endif
%% for r in blocks
    let own_{{ r }} = from_own + {{ 16 * r }}u + row;
    let there_{{ r }} = own_{{ r }} < own_end;
%% if BY == "query"
    let t_{{ r }} = min(own_{{ r }}, last_own);
    let statistics_{{ r }} = statistics_of(b, t_{{ r }}, n);
    let kept_{{ r }} = kept_keys(b, t_{{ r }});
%% endif
%% if BY == "query"
    {{ tiles.find_largest(r, other_half) }}
    let factor_{{ r }} = factor_for(largest_{{ r }}, largest.x);
    let top_{{ r }} = statistics_{{ r }}.top - WEIGHT_BITS;
    let delta_{{ r }} = factor_{{ r }} * statistics_{{ r }}.delta;
%% endif
%% for c in head_steps
    var head_sum_{{ r }}_{{ c }} = {{ matrices.zero() }};
%% endfor
%% for c in value_steps
    var value_sum_{{ r }}_{{ c }} = {{ matrices.zero() }};
%% endfor
%% endfor
    let scale = query_scale(b);
    {{ tiles.places() }}

    var staged = span.x{{ " / 16u * 16u" if KEPT }};
%% if problem.segments
    let own_ids = {{ "query_segment_range(b, first_own, last_own)" if BY == "query" else "key_segment_range(b, first_own, last_own + 1u)" }};
    var ids = vec2i();
    staged = next_tile(b, staged, span.y, own_ids, &ids);
%% endif
    {{ tiles.fetch("staged", "0u") }}
%% if BY == "key_value"
    var shared_head = 0u;
%% endif
    while (staged < span.y) {
%% if BY == "key_value"
        n = k * sharing + shared_head;
%% endif
        workgroupBarrier();
        {{ tiles.put() }}
        workgroupBarrier();
        // What comes next: the same rows of the group's next head, or the next rows.
        var next = staged;
%% if problem.segments
        let here_ids = ids;
%% endif
%% if BY == "key_value"
        var next_head = shared_head + 1u;
        if (next_head == sharing) {
            next_head = 0u;
%% else
        {
%% endif
            next = {{ "next_tile(b, staged + STAGED, span.y, own_ids, &ids)" if problem.segments else "staged + STAGED" }};
        }
        {{ tiles.fetch("next", "next_head") }}

        for (var place = 0u; place < STAGED; place += STREAM) {
            let tile = staged + place;
            if (!({{ own("tile") }})) {
                continue;
            }
            let tile_end = min(tile + STREAM, span.y);
%% if BY == "key_value"
%% for t in columns
            let t_{{ t }} = min(tile + {{ 16 * t }}u + row, span.y - 1u);
            let pair_end_{{ t }} = select(0u, own_end, tile + {{ 16 * t }}u + row < tile_end);
            let kept_{{ t }} = kept_keys(b, t_{{ t }});
%% if unbent
            let top_{{ t }} = streamed_statistics[place + {{ 16 * t }}u + row].x;
            let delta_{{ t }} = streamed_statistics[place + {{ 16 * t }}u + row].y;
%% endif
%% if not ranged
            let statistics_{{ t }} = statistics_of(b, t_{{ t }}, n);
%% endif
%% endfor
%% endif
%% if unbent and not (EMULATED and not ranged)
            let full = from_own + BLOCKS * 16u == to_own && tile + STREAM <= span.y;
%% if BY == "query"
            var whole = full && block_keeps(b, from_own, to_own - 1u, tile, tile_end);
%% else
            var whole = full && block_keeps(b, tile, tile_end - 1u, from_own, to_own);
%% endif
%% if problem.segments
            whole = whole && own_ids.x == own_ids.y && here_ids.x == here_ids.y;
%% endif
%% endif
%% if EMULATED
            {{ swift("if (!whole) ") if ranged else careful() }}
%% elif unbent
            if (whole) {
                {{ swift() }}
            } else {
                {{ swift("") if ranged else careful() }}
            }
%% else
            {{ careful() }}
%% endif
        }
        staged = next;
%% if BY == "key_value"
        shared_head = next_head;
%% endif
    }

%% if DIRECT
    // Of the scores as they are without the base of the logits.
    let natural = scale{{ " * LN_2" if not NATURAL and not problem.softcap }};
%% endif
%% for r in blocks
%% for name, steps, factor, offset in (("head", head_steps, "1.0 / (WEIGHT_SIZE * %s)" % factor(r), 0), ("value", value_steps, "1.0 / WEIGHT_SIZE", HEAD_CHUNKS))
%% for c in steps
    {{ settle() }}
    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "%s_sum_%d_%d" % (name, r, c)) }};
    {{ settle() }}
    if (there_{{ r }}) {
        var low = {{ factor }} * bitcast<vec4f>(exchange[own_scores]);
        var high = {{ factor }} * bitcast<vec4f>(exchange[own_scores + 1u]);
%% if BY == "query"
        if (!is_live(b, own_{{ r }})) {
            // Rows past the query length have no gradient, whatever lies in them.
            low = vec4f();
            high = vec4f();
        }
%% endif
%% if DIRECT
{% set of = "value" if name == "value" else "query" if BY == "query" else "key" %}
{% set row = "grad_query_row(b, own_%d, n)" % r if BY == "query" else "grad_%s_row(b, own_%d - parameters.key_first, k)" % (of, r) %}
%% if not problem.exact_dims
        if ({{ 2 * c }}u + half < {{ tiles.live_words(of) }})
%% endif
        {
            grad_{{ of }}[{{ row }} / 8u + {{ 2 * c }}u + half] = eight({{ "natural * " if name == "head" }}low, {{ "natural * " if name == "head" }}high);
        }
%% else
        let at = {{ "query_sums(b, own_%d, n)" % r if BY == "query" else "key_value_sums(b, own_%d, k)" % r }} + {{ offset + 4 * c }}u + 2u * half;
        add_sum(at, low);
        add_sum(at + 1u, high);
%% endif
    }
%% endfor
%% endfor
%% endfor
}
