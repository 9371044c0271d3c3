{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}
{% include "attention/backward/gradients.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}

// On matrix units: the query's gradient from gradients by scores that the sweep by key and value has kept. A workgroup
// owns OWN query rows of one head, each subgroup BLOCKS blocks of 16; K streams by, STAGED keys at a time, in the two
// halves of `key_tile` by turns. Gradients by scores are read a stage before they are needed, 16 bytes a lane, and
// become matrices on their way through workgroup memory.
{% set blocks = range(BLOCKS) %}
{% set columns = range(STAGED // 16) %}
{% set head_steps = range(HEAD_STEPS) %}


// 2 · STAGED · HEAD_PITCH · 16 bytes
var<workgroup> key_tile: array<vec4u, 2u * STAGED * HEAD_PITCH>;
// SUBGROUPS · BLOCKS · 16 · PITCH · 16 bytes: gradients by scores, at last sums
var<workgroup> exchange: array<vec4u, SUBGROUPS * BLOCKS * 16u * PITCH>;
{{ matrices.emulation(("exchange",), ("key_tile",), (), ("exchange",)) }}

{% include "attention/backward/matrix_sizes.wgsl" %}
@compute @workgroup_size(WORKGROUP)
fn matrix_query(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
{% include "attention/backward/block_place.wgsl" %}
    let subgroup = thread / 32u;
    let row = thread % 16u;
    let half = thread % 32u / 16u;
    let exchange_at = subgroup * BLOCKS * 16u * PITCH;
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif
    let start = parameters.key_first + (span.x - parameters.key_first) / 16u * 16u;
%% for r in blocks
    let from_{{ r }} = first_own + (subgroup * BLOCKS + {{ r }}u) * 16u;
    var span_{{ r }} = vec2u();
    if (from_{{ r }} < parameters.T) {
        span_{{ r }} = block_keys(b, from_{{ r }}, min(from_{{ r }} + 16u, parameters.T) - 1u, parameters.key_first, parameters.key_end);
    }
%% for t in columns
    var next_{{ r }}_{{ t }} = vec4u();
%% endfor
%% for c in head_steps
    var sum_{{ r }}_{{ c }} = {{ matrices.zero() }};
%% endfor
%% endfor
    let base = key_row(b, 0u, k);
%% for i in range(HEAD_PIECES)
    var piece_{{ i }} = vec4u();
%% endfor
    var half_at = 0u;
    // The first turn only reads.
    for (var staged = start; staged < span.y + STAGED; staged += STAGED) {
        {{ "workgroupBarrier();" if EMULATED }}
%% for r in blocks
%% for t in columns
        exchange[exchange_at + {{ 16 * r }}u * PITCH + row * PITCH + {{ 2 * t }}u + half] = next_{{ r }}_{{ t }};
%% endfor
%% endfor
        {{ "workgroupBarrier();" if EMULATED }}
        if (staged < span.y) {
{% set column = ("min(i %% %du, parameters.H / 8u - 1u)" if not problem.exact_dims else "i %% %du") % HEAD_EIGHTS %}
%% for i in range(HEAD_PIECES)
            {
                let i = thread + {{ i }}u * WORKGROUP;
                let at = staged + i / {{ HEAD_EIGHTS }}u;
                piece_{{ i }} = vec4u();
                if ({{ "i < STAGED * %du && " % HEAD_EIGHTS if (i + 1) * WORKGROUP > STAGED * HEAD_EIGHTS }}at < span.y) {
                    piece_{{ i }} = key[(base + (at - parameters.key_first) * parameters.key_s) / 8u + {{ column }}];
                }
            }
%% endfor
        }
%% for r in blocks
%% for t in columns
        {
            let s = staged + {{ 16 * t }}u;
            next_{{ r }}_{{ t }} = vec4u();
            if (s < span_{{ r }}.y && s + 16u > span_{{ r }}.x) {
                next_{{ r }}_{{ t }} = scores[scores_at(b, n, from_{{ r }}, s) + 2u * row + half];
            }
        }
%% endfor
%% endfor
        if (staged > start) {
%% for t in columns
%% for r in blocks
            let by_score_{{ r }}_{{ t }} = {{ matrices.load("left", "exchange", "exchange_at + %du * PITCH + %du" % (16 * r, 2 * t), "PITCH") }};
%% endfor
%% for c in head_steps
            {
                let streamed = {{ matrices.load("right", "key_tile", "(half_at + %du) * HEAD_PITCH + %du" % (16 * t, 2 * c), "HEAD_PITCH") }};
%% for r in blocks
                sum_{{ r }}_{{ c }} = {{ matrices.multiply_add("by_score_%d_%d" % (r, t), "streamed", "sum_%d_%d" % (r, c)) }};
%% endfor
            }
%% endfor
%% endfor
        }
        half_at = STAGED - half_at;
%% for i in range(HEAD_PIECES)
%% if (i + 1) * WORKGROUP > STAGED * HEAD_EIGHTS
        if (thread + {{ i }}u * WORKGROUP < STAGED * {{ HEAD_EIGHTS }}u)
%% endif
        {
            let i = thread + {{ i }}u * WORKGROUP;
            key_tile[(half_at + i / {{ HEAD_EIGHTS }}u) * HEAD_PITCH + i % {{ HEAD_EIGHTS }}u] = piece_{{ i }};
        }
%% endfor
        workgroupBarrier();
    }

    let largest = largest_of(b, k);
    let natural = query_scale(b) * LN_2 / (WEIGHT_SIZE * factor_for(largest.y, largest.x));
%% for r in blocks
%% for c in head_steps
    {{ "workgroupBarrier();" if EMULATED }}
    {{ matrices.store("exchange", "exchange_at", "PITCH", "sum_%d_%d" % (r, c)) }};
    {{ "workgroupBarrier();" if EMULATED }}
    if (from_{{ r }} + row < parameters.T{{ " && %du + half < parameters.H / 8u" % (2 * c) if not problem.exact_dims }}) {
        let low = natural * bitcast<vec4f>(exchange[exchange_at + row * PITCH + 2u * half]);
        let high = natural * bitcast<vec4f>(exchange[exchange_at + row * PITCH + 2u * half + 1u]);
        grad_query[grad_query_row(b, from_{{ r }} + row, n) / 8u + {{ 2 * c }}u + half] = eight(low, high);
    }
%% endfor
%% endfor
}
