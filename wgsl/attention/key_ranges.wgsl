{# Which keys the masks of a call let a row keep, as ranges. A part of hooks.wgsl. #}
// Where query row t sits among the keys, before any mask's own offset.
fn position_of(b: u32, t: u32) -> i32 {
%% if problem.query_offset
    return i32(parameters.t_first + t) + clamp(bitcast<i32>(row_query_offset(b, 0u)), -FAR, FAR);
%% else
    return i32(parameters.t_first + t);
%% endif
}

// The keys that one row may keep: [first, end), and where two clauses are joined [also_first, also_end).
struct Kept {
    first: i32,
    end: i32,
%% if problem.keys.clauses | length > 1
    also_first: i32,
    also_end: i32,
%% endif
}

%% for clause in problem.keys.clauses
{% set clause_index = loop.index0 %}
fn clause_{{ clause_index }}(b: u32, p: i32) -> vec2i {
    var first = 0;
    var end = key_length(b);
%% for side, kind, source in clause
{% set field = "bound_" ~ clause_index ~ "_" ~ loop.index0 %}
{% set added = "parameters." ~ field %}
%% if source
    let {{ field }} = {{ added }} + clamp(bitcast<i32>(row_{{ bound_sources[clause_index][loop.index0] }}(b, 0u)), -FAR, FAR);
%% else
    let {{ field }} = {{ added }};
%% endif
%% if kind == "chunk"
    let chunk_{{ loop.index0 }} = floor_multiple(p, {{ field }});
%% if side == "lower"
    first = max(first, chunk_{{ loop.index0 }});
%% else
    end = min(end, chunk_{{ loop.index0 }} + {{ field }});
%% endif
%% else
{% set edge = "p + " ~ field if kind == "diagonal" else field %}
%% if side == "lower"
    first = max(first, {{ edge }});
%% else
    end = min(end, {{ edge }} + 1);
%% endif
%% endif
%% endfor
    return vec2i(first, max(first, end));
}

%% endfor
// The greatest multiple of `size` that is at most p, for negative p too.
fn floor_multiple(p: i32, size: i32) -> i32 {
    return p - (p % size + size) % size;
}

// Row t's kept keys over the whole call.
fn kept_keys(b: u32, t: u32) -> Kept {
    let p = position_of(b, t);
    let a = clause_0(b, p);
%% if problem.keys.clauses | length > 1
    let c = clause_1(b, p);
    if (parameters.t_first + t >= query_length(b)) {
        return Kept(0, 0, 0, 0);
    }
    return Kept(a.x, a.y, c.x, c.y);
%% else
    if (parameters.t_first + t >= query_length(b)) {
        return Kept(0, 0);
    }
    return Kept(a.x, a.y);
%% endif
}

// Every bound grows with the row, so a block of rows keeps nothing outside [first of its first row, end of its last
// row). The answer is clipped to keys [from, to) and is empty (x = y) where they do not meet.
fn block_keys(b: u32, t_first: u32, t_last: u32, from_key: u32, to_key: u32) -> vec2u {
%% if problem.ring
    // Slots hold positions in turn, so that ranges of them say nothing.
    var first = 0;
    var end = min(key_length(b), i32(parameters.S));
%% else
    let low = position_of(b, t_first);
    let high = position_of(b, t_last);
    var first = clause_0(b, low).x;
    var end = clause_0(b, high).y;
%% if problem.keys.clauses | length > 1
    first = min(first, clause_1(b, low).x);
    end = max(end, clause_1(b, high).y);
%% endif
%% if problem.keys.lengths
    // A row whose range is empty may have it behind the last key, where its window starts.
    end = min(end, key_length(b));
%% endif
%% endif
%% if problem.query_lengths
    if (parameters.t_first + t_first >= query_length(b)) {
        end = 0;
    }
%% endif
    let clipped = max(first, i32(from_key));
    return vec2u(u32(clipped), u32(max(clipped, min(end, i32(to_key)))));
}

// Whether every row of a block keeps every key of [first, end), as far as ranges go; false may also mean that it was
// not found out. Rows past the query length are not asked: they end as zeros.
fn block_keeps(b: u32, t_first: u32, t_last: u32, first: u32, end: u32) -> bool {
%% if problem.ring
    return false;
%% else
    let low = position_of(b, t_first);
    let high = position_of(b, t_last);
    var keeps = clause_0(b, high).x <= i32(first) && i32(end) <= clause_0(b, low).y;
%% if problem.keys.clauses | length > 1
    keeps = keeps || (clause_1(b, high).x <= i32(first) && i32(end) <= clause_1(b, low).y);
%% endif
%% if problem.paged
    for (var s = first; s < end; s = (s | ((1u << parameters.page_bits) - 1u)) + 1u) {
        keeps = keeps && key_there(b, s);
    }
%% endif
    return keeps;
%% endif
}

fn in_range(kept: Kept, s: i32) -> bool {
%% if problem.keys.clauses | length > 1
    return (s >= kept.first && s < kept.end) || (s >= kept.also_first && s < kept.also_end);
%% elif problem.keys.clauses[0] | selectattr(0, "equalto", "lower") | list
    return s >= kept.first && s < kept.end;
%% else
    return s < kept.end;
%% endif
}

fn range_is_empty(kept: Kept) -> bool {
%% if problem.keys.clauses | length > 1
    return kept.first >= kept.end && kept.also_first >= kept.also_end;
%% else
    return kept.first >= kept.end;
%% endif
}

