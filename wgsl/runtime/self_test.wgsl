// What every kernel relies on, tried once on a new device: a value that one thread writes is seen by all after a
// barrier, a reduction through workgroup memory adds up, and parameters arrive. Some drivers lose workgroup barriers.

struct Parameters { seed: u32 }

@group(0) @binding(0) var<storage, read_write> found: array<u32>; // 3 words a workgroup
@group(0) @binding(1) var<uniform> parameters: Parameters;

// 4 bytes
var<workgroup> shared_value: u32;
// 64 · 4 bytes
var<workgroup> partial: array<u32, 64>;

@compute @workgroup_size(64)
fn self_test(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
    if (thread == 63u) { shared_value = parameters.seed + workgroup.x; }
    workgroupBarrier();
    let seen = shared_value;
    workgroupBarrier();
    if (thread == 5u) { shared_value = 0u; }

    partial[thread] = seen + thread;
    workgroupBarrier();
    for (var step = 32u; step > 0u; step = step / 2u) {
        var other = 0u;
        if (thread < step) { other = partial[thread + step]; }
        workgroupBarrier();
        if (thread < step) { partial[thread] = partial[thread] + other; }
        workgroupBarrier();
    }
    if (thread == 17u) {
        found[workgroup.x * 3u] = seen;
        found[workgroup.x * 3u + 1u] = partial[0];
        found[workgroup.x * 3u + 2u] = shared_value;
    }
}
