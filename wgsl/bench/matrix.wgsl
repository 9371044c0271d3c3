{% include "shared/prelude.wgsl" %}
{% import "shared/matrices.wgsl" as matrices with context %}

// How many multiplications and additions matrix units do: a subgroup keeps eight matrices of sums, which do not wait
// for each other, and multiplies operands that stay in registers. Every operand is 0.125, which float16 holds exactly.

// 512 bytes
var<workgroup> operands: array<vec4u, 32>;
// SUBGROUPS · 1024 bytes: a matrix of sums of each subgroup, on its way to the lanes
var<workgroup> sums: array<vec4f, SUBGROUPS * 64u>;

{{ matrices.emulation(("operands",), ("operands",), ("sums",)) }}

@compute @workgroup_size(WORKGROUP)
fn multiply_matrices(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
%% if EMULATED
    matrix_lane = thread % 32u;
%% endif
    if (thread < 32u) { operands[thread] = vec4u(0x30003000u); }
    workgroupBarrier();
%% for i in range(2)
    let left_{{ i }} = {{ matrices.load("left", "operands", "0u", "2u") }};
%% endfor
%% for j in range(4)
    let right_{{ j }} = {{ matrices.load("right", "operands", "0u", "2u") }};
%% endfor
%% for n in range(8)
    var sum_{{ n }} = {{ matrices.zero() }};
%% endfor
    for (var turn = 0u; turn < parameters.turns; turn = turn + 1u) {
%% for n in range(8)
        sum_{{ n }} = {{ matrices.multiply_add("left_%d" % (n // 4), "right_%d" % (n % 4), "sum_%d" % n) }};
%% endfor
    }
    var total = vec4f(0.0);
%% for n in range(8)
    {{ matrices.store("sums", "thread / 32u * 64u", "4u", "sum_%d" % n) }};
    workgroupBarrier();
    total = total + sums[thread];
    workgroupBarrier();
%% endfor
    found[workgroup.x * WORKGROUP + thread] = total;
}
