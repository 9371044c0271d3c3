{# Macros: a step of flash_matrix, for BLOCKS blocks of 16 rows a subgroup. Import it with its context.
   s_r_t are logits as matrices, of block r and 16 keys from 16 t on; x_r_i the lane's own, four a vector; high_r the
   highest of these, top_r the maximum that the row's sums are relative to; o_r_c the sums. #}
{% import "shared/matrices.wgsl" as matrices with context %}
{% set blocks = range(BLOCKS) %}
{% set key_blocks = range(KEY_BLOCKS) %}
{% set head_steps = range(HEAD_STEPS) %}
{% set value_steps = range(VALUE_STEPS) %}
{% set fours = range(2 * KEY_BLOCKS) %}
{# Whether some rows' first keys may lie behind others'. #}
{% set late = problem.segments or problem.keys.clauses | sum(start=()) | selectattr(0, "equalto", "lower") | list %}
{# Whether logits have a bias or a mask to look up, and whether four keys' lie so that they are read at once. #}
{% set dense = problem.bias is not none or problem.mask %}
{% set in_fours = not problem.mask or "mask" in problem.dense_rows %}
{# What orders the lanes' writes before their reads. Lanes of a subgroup go through the same code together. #}
{% macro settle() %}{{ "workgroupBarrier();" if EMULATED }}{% endmacro %}
{# The same number of the lane that has the other half of a row. #}
{% macro other_half(value) %}{{ "other_half(thread, " ~ value ~ ")" if EMULATED else "subgroupShuffleXor(" ~ value ~ ", 16u)" }}{% endmacro %}
{# Whether a subgroup's rows keep any of a step's keys. All lanes pass the barriers of the emulation. #}
{% macro own(at) %}{{ "true" if EMULATED else "%s < own_keys.y && %s + STEP_K > own_keys.x" % (at, at) }}{% endmacro %}
{# Where block r of the rows is exchanged. #}
{% macro place(array, r) %}{{ array }} + {{ r }}u * EXCHANGE{% endmacro %}

{# The products of Q and the keys that lie from row `first` of key_tile on, as matrices of keys and rows: these are
   stored by columns, without bank conflicts. #}
{% macro products(first) %}
{% macro key_part(t, c) %}{{ matrices.load("left", "key_tile", "%du * KEY_PITCH + %du" % (first + 16 * t, 2 * c), "KEY_PITCH") }}{% endmacro %}
{% macro add(r, t, part, c) %}s_{{ r }}_{{ t }} = {{ matrices.multiply_add(part, "q_%d_%d" % (r, c), "s_%d_%d" % (r, t)) }};{% endmacro %}
%% for t in key_blocks
%% for r in blocks
            s_{{ r }}_{{ t }} = {{ matrices.zero() }};
%% endfor
%% endfor
%% for c in head_steps
%% for t in key_blocks
            {
                let k_part = {{ key_part(t, c) }};
%% if PARTS == 2
                let k_rest = {{ key_part(t, HEAD_STEPS + c) }};
%% endif
%% for r in blocks
                {{ add(r, t, "k_part", c) }}
%% if PARTS == 2
                {{ add(r, t, "k_part", HEAD_STEPS + c) }}
                {{ add(r, t, "k_rest", c) }}
%% endif
%% endfor
            }
%% endfor
%% endfor
{% endmacro %}

{# Logits of block r from s to x, or x to where a loop can count its elements, and back: SLOTS times 16 keys a turn. #}
{% macro read_x(r, turn) %}
%% for i in range(2 * SLOTS)
            x_{{ r }}_{{ 2 * turn * SLOTS + i }} = bitcast<vec4f>(exchange[{{ place("own_scores", r) }} + {{ i // 2 * 4 + i % 2 }}u]);
%% endfor
{% endmacro %}
{% macro write_x(r, turn) %}
%% for i in range(2 * SLOTS)
                    exchange[{{ place("own_scores", r) }} + {{ i // 2 * 4 + i % 2 }}u] = bitcast<vec4u>(x_{{ r }}_{{ 2 * turn * SLOTS + i }});
%% endfor
{% endmacro %}

{# The logits of the keys from `at` on, of segments `ids`, to the lanes; and the highest. #}
{% macro logits(at, ids) %}
%% for turn in range(KEY_BLOCKS // SLOTS)
            {{ settle() }}
%% for r in blocks
%% for slot in range(SLOTS)
            {{ matrices.store("exchange", place("exchange_at", r) ~ " + %du" % (4 * slot), "SCORE_PITCH", "s_%d_%d" % (r, turn * SLOTS + slot), "col_major") }};
%% endfor
%% endfor
            {{ settle() }}
%% for r in blocks
{{ read_x(r, turn) }}
%% endfor
%% endfor
            {
%% if in_fours
                var whole = {{ at }} + STEP_K <= keys.y && block_keeps(b, min(own_first, own_last), own_last, {{ at }}, {{ at }} + STEP_K);
%% if problem.segments
                whole = whole && q_ids.x == q_ids.y && {{ ids }}.x == {{ ids }}.y;
%% endif
%% else
                let whole = false;
%% endif
                var factor = scale;
                if ({{ "true" if problem.softcap and not dense else "!whole" }}{{ "" if EMULATED else " && %s < own_keys.y" % at }}) {
%% for r in blocks
%% for turn in range(KEY_BLOCKS // SLOTS)
{{ write_x(r, turn) }}
                    for (var i = 0u; i < {{ 8 * SLOTS }}u; i++) {
                        let place = {{ place("own_scores", r) }} + i / 8u * 4u + i % 8u / 4u;
                        let s = {{ at }} + ({{ turn * SLOTS }}u + i / 8u) * 16u + 8u * half + i % 8u;
                        let product = scale * bitcast<f32>(exchange[place][i % 4u]);
                        var x = MASKED;
%% if problem.softcap and not dense
                        if (whole) {
                            x = capped(product);
                        } else if (s < keys.y) {
%% else
                        if (s < keys.y) {
%% endif
                            x = logit(product, b, min(n_{{ r }}, n_last), min(t_{{ r }}, t_last), s, kept_{{ r }});
                        }
                        exchange[place][i % 4u] = bitcast<u32>(x);
                    }
{{ read_x(r, turn) }}
%% endfor
%% endfor
                    factor = 1.0;
%% if dense and in_fours
                } else if (whole) {
%% for r in blocks
%% for i in fours
                    x_{{ r }}_{{ i }} = logits_of_four(scale * x_{{ r }}_{{ i }}, b, min(n_{{ r }}, n_last), min(t_{{ r }}, t_last), {{ at }} + {{ i // 2 * 16 + i % 2 * 4 }}u + 8u * half);
%% endfor
%% endfor
                    factor = 1.0;
%% endif
                }
%% for r in blocks
%% for i in fours
                x_{{ r }}_{{ i }} *= factor;
%% endfor
%% endfor
            }
{% endmacro %}
{% macro highest() %}
%% for r in blocks
            four = x_{{ r }}_0;
%% for i in fours
%% if i
            four = max(four, x_{{ r }}_{{ i }});
%% endif
%% endfor
            high_{{ r }} = max(max(four.x, four.y), max(four.z, four.w));
%% endfor
{% endmacro %}

{# A maximum is followed where it grew much: weights stay far from overflow, and rescaling is rare. #}
{% macro follow_maxima() %}
{% macro grew() %}{% for r in blocks %}{{ " || " if r }}high_{{ r }} > top_{{ r }} + SLACK{% endfor %}{% endmacro %}
            {{ "{" if EMULATED else "if (subgroupAny(%s)) {" % grew() }}
%% for r in blocks
                high_{{ r }} = max(max(high_{{ r }}, {{ other_half("high_%d" % r) }}), top_{{ r }});
                let fade_{{ r }} = decay(top_{{ r }}, high_{{ r }});
                top_{{ r }} = high_{{ r }};
                total_{{ r }} *= fade_{{ r }};
%% endfor
                if (started) {
%% for r in blocks
%% for c in value_steps
                    {{ settle() }}
                    {{ matrices.store("exchange", "exchange_at", "SCORE_PITCH", "o_%d_%d" % (r, c)) }};
                    {{ settle() }}
                    exchange[own_scores] = bitcast<vec4u>(fade_{{ r }} * bitcast<vec4f>(exchange[own_scores]));
                    exchange[own_scores + 1u] = bitcast<vec4u>(fade_{{ r }} * bitcast<vec4f>(exchange[own_scores + 1u]));
                    {{ settle() }}
                    o_{{ r }}_{{ c }} = {{ matrices.load("result", "exchange", "exchange_at", "SCORE_PITCH") }};
%% endfor
%% endfor
                }
            }
{% endmacro %}

{# The weights of the logits in x, as float16, into matrices p_r_t. #}
{% macro weights() %}
            {{ settle() }}
%% for r in blocks
            {
                // Where no key was kept yet, what is masked is far below 0 too.
                let base = select(top_{{ r }}, 0.0, top_{{ r }} == MASKED);
                var sum = vec4f();
%% for t in key_blocks
                {
                    let a = weights_of(x_{{ r }}_{{ 2 * t }}, base);
                    let b = weights_of(x_{{ r }}_{{ 2 * t + 1 }}, base);
                    exchange[{{ place("own_weights", r) }} + {{ 2 * t }}u] = eight(a, b);
                    sum += a + b;
                }
%% endfor
                total_{{ r }} += (sum.x + sum.y) + (sum.z + sum.w);
            }
%% endfor
            {{ settle() }}
%% for r in blocks
%% for t in key_blocks
            let p_{{ r }}_{{ t }} = {{ matrices.load("left", "exchange", place("exchange_at", r) ~ " + %du" % (2 * t), "WEIGHT_PITCH") }};
%% endfor
%% endfor
{% endmacro %}
{# The products of the weights and the rows of V from `first` of value_tile on. #}
{% macro add_values(first) %}
%% for t in key_blocks
%% for c in value_steps
                {
                    let v_part = {{ matrices.load("right", "value_tile", "%du * VALUE_PITCH + %du" % (first + 16 * t, 2 * c), "VALUE_PITCH") }};
%% for r in blocks
                    o_{{ r }}_{{ c }} = {{ matrices.multiply_add("p_%d_%d" % (r, t), "v_part", "o_%d_%d" % (r, c)) }};
%% endfor
                }
%% endfor
%% endfor
{% endmacro %}

{# A step: the weights of the keys at `at`, the logits of those at `then`, of segments `ids`, and products with V. Both
   lie from row `first` of their tiles on. #}
{% macro step(at, then, ids, first) %}
        if ({{ "true" if EMULATED else "%s < own_keys.y && %s + STEP_K > own_keys.x" % (at, then) }}) {
{{ follow_maxima() }}
{{ products(first) }}
{{ weights() }}
{{ logits(then, ids) }}
            // Where the next keys are a subgroup's first, nothing of V may be seen here.
            {{ "if (%s + STEP_K > own_keys.x) {" % at if late and not EMULATED else "{" }}
{{ add_values(first) }}
                started = true;
            }
{{ highest() }}
        }
{% endmacro %}
