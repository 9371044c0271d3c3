{# How a row ends: its output, its residual, and what a part hands to the merge. The last part of hooks.wgsl. #}
// How a row ends: its sums are multiplied by `factor`; or it is zero; or it keeps no key and is the mean of V.
struct RowEnd {
    factor: f32,
    residual: f32,
    zero: bool,
    empty: bool,
}

fn row_end(top: f32, total: f32, b: u32, t: u32, n: u32) -> RowEnd {
    let past = parameters.t_first + t >= query_length(b);
    let none = total == 0.0;
%% if problem.sinks
    // The sink joins the sum once, and adds no value.
    let natural_sink = bitcast<f32>(row_sinks(b, parameters.n_first + n));
%% if NATURAL
    let sink = natural_sink;
%% else
    let sink = natural_sink * LOG2_E;
%% endif
    let high = max(top, sink);
    let with_sink = total * decay(top, high) + decay(sink, high);
    if (past || none) {
        return RowEnd(0.0, natural_sink, true, false);
    }
    return RowEnd(decay(top, high) / with_sink, natural_log(high, with_sink), false, false);
%% else
    if (past || none) {
%% if problem.empty_rows == "zero"
        return RowEnd(0.0, EMPTY_RESIDUAL, true, false);
%% else
        return RowEnd(0.0, EMPTY_RESIDUAL, past, !past);
%% endif
    }
    return RowEnd(1.0 / total, natural_log(top, total), false, false);
%% endif
}

// Whether a stored residual says that its row keeps no key, by either rule.
fn no_key(residual: f32) -> bool {
    return residual == EMPTY_RESIDUAL || bitcast<u32>(residual) == 0xff800000u;
}

// What a row's residual is stored as: an infinity is a pattern of bits, since no arithmetic here makes one.
fn residual_bits(end: RowEnd) -> u32 {
%% if problem.empty_rows == "zero" and not problem.sinks
    return select(bitcast<u32>(end.residual), 0xff800000u, end.zero);
%% else
    return bitcast<u32>(end.residual);
%% endif
}

fn natural_log(top: f32, total: f32) -> f32 {
%% if NATURAL
    return top + log(total);
%% else
    return (top + log2(total)) * LN_2;
%% endif
}

%% if problem.empty_rows == "mean" and "value" not in UNBUFFERED
// Elements 4 · chunk … of the sum of V over keys [first, end), of every `step` the first eight. Eight a turn, since
// Mesa counts loop turns, and without a branch, so that their reads wait together.
fn value_sum(b: u32, k: u32, chunk: u32, first: u32, end: u32, step: u32) -> vec4f {
    var sum = vec4f();
    for (var s = first; s < end; s += step) {
        var eight = vec4f();
        for (var i = 0u; i < 8u; i++) {
            let four = load_value(value_row(b, key_slot(b, min(s + i, end - 1u)), k), chunk);
            eight += select(vec4f(), four, s + i < end);
        }
        sum += eight;
    }
    return sum;
}

%% endif
// Whether a row ends as the mean of V: it keeps no key, or none in this part. With sinks it is zero.
fn ends_as_mean(b: u32, t: u32, total: f32) -> bool {
%% if problem.empty_rows != "mean" or problem.sinks
    return false;
%% elif PARTIAL and not problem.dense
    return total == 0.0 && parameters.t_first + t < query_length(b) && range_is_empty(kept_keys(b, t));
%% else
    return total == 0.0 && parameters.t_first + t < query_length(b);
%% endif
}

%% if problem.empty_rows == "mean" and "value" not in UNBUFFERED
// What such a row needs: the sum of V over all keys, or over a part's, which hands on its share.
fn sum_for_mean(part: u32, b: u32, k: u32, chunk: u32) -> vec4f {
    return share_for_mean(part, b, k, chunk, 0u, 1u);
}

// One of the `shares` that several threads make of it.
fn share_for_mean(part: u32, b: u32, k: u32, chunk: u32, share: u32, shares: u32) -> vec4f {
%% if PARTIAL
    let first = parameters.key_first + part * parameters.part_keys;
    return value_sum(b, k, chunk, first + 8u * share, min(first + parameters.part_keys, parameters.key_end), 8u * shares);
%% else
    return value_sum(b, k, chunk, 8u * share, parameters.S, 8u * shares);
%% endif
}

%% endif
%% if "out" in UNBUFFERED
// This kernel ends no row.
%% elif PARTIAL
// A part's sums of one row, for the merge: value_dim elements and then (top, total).
fn partial_row(part: u32, b: u32, t: u32, n: u32) -> u32 {
    let row = (b * parameters.T + t) * parameters.N + n;
    return ((parameters.part_first + part) * parameters.batch * parameters.T * parameters.N + row) * (VALUE_DIM / 4u + 1u);
}

fn finish_row(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32) {
    partial[partial_row(part, b, t, n) + VALUE_DIM / 4u] = vec4f(top, total, 0.0, 0.0);
}
%% if "value" not in UNBUFFERED

// `all_values` is sum_for_mean where ends_as_mean, and not used elsewhere.
fn finish_chunk(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32, chunk: u32, sum: vec4f, all_values: vec4f) {
    partial[partial_row(part, b, t, n) + chunk] = select(sum, all_values, ends_as_mean(b, t, total));
}
%% endif
%% else
fn finish_row(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32) {
%% if problem.residual is not none
    residual[row_of(b, t, n)] = residual_bits(row_end(top, total, b, t, n));
%% endif
}
%% if "value" not in UNBUFFERED

// `all_values` is sum_for_mean where ends_as_mean, and not used elsewhere.
fn finish_chunk(part: u32, b: u32, t: u32, n: u32, top: f32, total: f32, chunk: u32, sum: vec4f, all_values: vec4f) {
    let end = row_end(top, total, b, t, n);
    var four = sum * end.factor;
    if (end.zero) {
        four = vec4f();
    }
%% if problem.empty_rows == "mean"
    if (end.empty) {
        four = all_values / f32(parameters.S);
    }
%% endif
    store_out(out_row(b, t, n), chunk, four);
}
%% endif
%% endif
