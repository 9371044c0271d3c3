{# What the backward kernels share beside the hooks: grad_out's rows, a row's statistics, the weight of a query and a
   key and its gradient. #}
{% import "shared/elements.wgsl" as elements %}
%% if "grad_out" in BOUND
%% if out_name not in names_16_bit and out_name != "f32"
{{ elements.unpack_pair(out_name) }}
%% endif
%% if "grad_out" not in UNBUFFERED
{{ elements.element_reader("grad_out", out_name, "grad_out" in problem.vectors) }}

{{ elements.row_reader("grad_out", out_name, "grad_out" in problem.vectors, "parameters.Hv", problem.exact_dims) }}

fn grad_out_row(b: u32, t: u32, n: u32) -> u32 {
    return parameters.grad_out_at + (b / parameters.B1) * parameters.grad_out_b0 + (b % parameters.B1) * parameters.grad_out_b1
        + t * parameters.grad_out_t + n * parameters.grad_out_n;
}

%% endif
%% endif
// A launch serves whole groups of query heads, or a share of one group: its key/value heads, and the query heads of
// each.
fn key_heads() -> u32 {
    return max(parameters.N / parameters.G, 1u);
}

fn sharing_heads() -> u32 {
    return min(parameters.N, parameters.G);
}

fn is_live(b: u32, t: u32) -> bool {
    return parameters.t_first + t < query_length(b);
}

%% if "rows" in BOUND
// A row's residual in the base of the logits, grad_out · out, and what float32 could not hold of the residual.
struct Statistics {
    top: f32,
    delta: f32,
%% if NATURAL
    rest: f32,
%% endif
}

fn statistics_of(b: u32, t: u32, n: u32) -> Statistics {
    let at = parameters.statistics_at + row_of(b, t, n) * STATISTICS;
%% if NATURAL
    return Statistics(bitcast<f32>(rows[at]), bitcast<f32>(rows[at + 1u]), bitcast<f32>(rows[at + 2u]));
%% else
    return Statistics(bitcast<f32>(rows[at]), bitcast<f32>(rows[at + 1u]));
%% endif
}

%% endif
%% if "grad_out" in BOUND and "rows" in BOUND
%% if "bias" not in UNBUFFERED and "mask" not in UNBUFFERED
// The weight p of key s in row t, and the gradients by its logit and by its scaled score; all 0 where the key is not
// kept.
struct Share {
    weight: f32,
    logit: f32,
    score: f32,
}

fn share_of(product: f32, by_weight: f32, b: u32, n: u32, t: u32, s: u32, kept: Kept, row: Statistics) -> Share {
    let scaled = product * query_scale(b);
    let x = logit(scaled, b, n, t, s, kept);
    if (x == MASKED) {
        return Share(0.0, 0.0, 0.0);
    }
%% if NATURAL
    let p = exp2(((x - row.top) - row.rest) * LOG2_E);
%% else
    let p = decay(x, row.top);
%% endif
    let by_logit = p * (by_weight - row.delta);
%% if problem.softcap
    let bent = tanh_exact(scaled / parameters.softcap);
    return Share(p, by_logit, by_logit * (1.0 - bent * bent));
%% else
    return Share(p, by_logit, by_logit);
%% endif
}

%% endif
// The range of a row that keeps every key there is: for blocks that are known to be kept whole.
fn every_key() -> Kept {
%% if problem.keys.clauses | length > 1
    return Kept(0, FAR, 0, 0);
%% else
    return Kept(0, FAR);
%% endif
}

// Query rows [x, y) of this launch, the only ones that may keep a key of [s_first, s_end). A row's first and last kept
// key grow with the row, so both ends are found by halving.
fn query_rows(b: u32, s_first: u32, s_end: u32) -> vec2u {
    let live = clamp(query_length(b), parameters.t_first, parameters.t_first + parameters.T) - parameters.t_first;
    var low = 0u;
    var high = live;
    while (low < high) {
        let middle = (low + high) / 2u;
        let p = position_of(b, middle);
        var end = clause_0(b, p).y;
%% if problem.keys.clauses | length > 1
        end = max(end, clause_1(b, p).y);
%% endif
        if (end > i32(s_first)) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    let first = low;
    high = live;
    while (low < high) {
        let middle = (low + high) / 2u;
        let p = position_of(b, middle);
        var start = clause_0(b, p).x;
%% if problem.keys.clauses | length > 1
        start = min(start, clause_1(b, p).x);
%% endif
        if (start >= i32(s_end)) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return vec2u(first, low);
}
%% endif
%% if "sums" in BOUND

// What earlier launches of the same rows have added up stays in.
fn add_sum(at: u32, four: vec4f) {
    var sum = four;
    if (parameters.add != 0u) {
        sum += sums[at];
    }
    sums[at] = sum;
}

// Where the sums of a query row start, and those of a key: its own, then its value's.
fn query_sums(b: u32, t: u32, n: u32) -> u32 {
    return ((b * parameters.T + t) * parameters.N + n) * (HEAD_DIM / 4u);
}

fn key_value_sums(b: u32, s: u32, k: u32) -> u32 {
    let keys = parameters.key_end - parameters.key_first;
    return ((b * keys + s - parameters.key_first) * key_heads() + k) * (HEAD_DIM / 4u + VALUE_DIM / 4u);
}
%% endif
