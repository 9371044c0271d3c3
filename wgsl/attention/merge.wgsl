{% include "shared/prelude.wgsl" %}
{% include "attention/hooks.wgsl" %}

// Merge: the parts of a row, each with its own running maximum, become one row. A thread owns one chunk of four
// elements of every PART_LANES-th part; those of a row stand in one workgroup and meet in its memory.

struct Merged {
    top: f32,
    total: f32,
    sum: vec4f,
    unweighted: vec4f,
}

%% if PART_LANES > 1
// WORKGROUP · 8 bytes
var<workgroup> ends_of: array<vec2f, WORKGROUP>;
// WORKGROUP · 16 bytes
var<workgroup> sums_of: array<vec4f, WORKGROUP>;
// WORKGROUP · 16 bytes
var<workgroup> unweighted_of: array<vec4f, WORKGROUP>;

%% endif
// Parts first, first + step, … of a row whose first part starts at `at`, parts being `stride` apart.
fn merged(at: u32, stride: u32, chunk: u32, first: u32, step: u32) -> Merged {
    var found = Merged(MASKED, 0.0, vec4f(), vec4f());
    for (var part = first; part < parameters.parts; part += step) {
        found.top = max(found.top, partial[part * stride + at + CHUNKS].x);
    }
    for (var part = first; part < parameters.parts; part += step) {
        let ends = partial[part * stride + at + CHUNKS];
        let four = partial[part * stride + at + chunk];
        // A part with no kept key may hold its share of the plain sum of V: it belongs to the mean alone.
        if (ends.y == 0.0) {
            found.unweighted += four;
        } else {
            let share = decay(ends.x, found.top);
            found.total += share * ends.y;
            found.sum += share * four;
        }
    }
    return found;
}

@compute @workgroup_size(WORKGROUP)
fn merge(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) workgroups: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
%% if PART_LANES > 1
    let spare = thread >= ROWS * PART_LANES * CHUNKS;
    let own = select(thread, 0u, spare);
    let lane = own / CHUNKS % PART_LANES;
    let row = folded_index(workgroup, workgroups) * ROWS + own / (CHUNKS * PART_LANES);
%% else
    let spare = false;
    let own = folded_index(workgroup, workgroups) * WORKGROUP + thread;
    let lane = 0u;
    let row = own / CHUNKS;
%% endif
    let chunk = own % CHUNKS;
    let n = row % parameters.N;
    let t = row / parameters.N % parameters.T;
    let b = row / parameters.N / parameters.T;
    let stride = parameters.batch * parameters.T * parameters.N * (CHUNKS + 1u);
    let at = ((b * parameters.T + t) * parameters.N + n) * (CHUNKS + 1u);
    var found = Merged(MASKED, 0.0, vec4f(), vec4f());
    if (b < parameters.batch) {
        found = merged(at, stride, chunk, lane, PART_LANES);
    }
%% if PART_LANES > 1
    ends_of[thread] = vec2f(found.top, found.total);
    sums_of[thread] = found.sum;
    unweighted_of[thread] = found.unweighted;
    workgroupBarrier();
    if (lane == 0u) {
        for (var i = 1u; i < PART_LANES; i++) {
            let other = own + i * CHUNKS;
            let ends = ends_of[other];
            let top = max(found.top, ends.x);
            let mine = decay(found.top, top);
            let theirs = decay(ends.x, top);
            found.top = top;
            found.total = mine * found.total + theirs * ends.y;
            found.sum = mine * found.sum + theirs * sums_of[other];
            found.unweighted += unweighted_of[other];
        }
    }
%% endif
    if (b >= parameters.batch || lane != 0u || spare) {
        return;
    }

    let end = row_end(found.top, found.total, b, t, n);
    var four = found.sum * end.factor;
    if (end.zero) {
        four = vec4f();
    }
    if (end.empty) {
        four = found.unweighted / f32(parameters.S);
    }
    store_out(out_row(b, t, n), chunk, four);
%% if problem.residual is not none
    if (chunk == 0u) {
        residual[row_of(b, t, n)] = residual_bits(end);
    }
%% endif
}
