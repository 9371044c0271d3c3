// How fast a storage buffer is read: neighbours in a workgroup read neighbouring vectors, sixteen of them each.

struct Parameters { vectors: u32 }

@group(0) @binding(0) var<storage, read> given: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>; // one a workgroup
@group(0) @binding(2) var<uniform> parameters: Parameters;

const THREADS = 256u;
const VECTORS = 16u;

@compute @workgroup_size(THREADS)
fn read_all(
    @builtin(workgroup_id) workgroup: vec3u,
    @builtin(num_workgroups) grid: vec3u,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = workgroup.y * grid.x + workgroup.x;
    let first = index * THREADS * VECTORS + thread;
    if (first + (VECTORS - 1u) * THREADS >= parameters.vectors) { return; }
    var sum = vec4u(0u);
    for (var i = 0u; i < VECTORS; i = i + 1u) { sum = sum ^ given[first + i * THREADS]; }
    // what is read must be used; a random word is hardly ever this one
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x5eed5eedu) { found[index] = thread; }
}
