// How fast a storage texture is read: on CPU adapters many times faster than a buffer. Each thread sums sixteen texels.

struct Parameters { height: u32 }

@group(0) @binding(0) var given: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var<storage, read_write> found: array<vec4f>; // one a thread
@group(0) @binding(2) var<uniform> parameters: Parameters;

const TEXELS = 16u;

@compute @workgroup_size(64)
fn read_all(@builtin(global_invocation_id) thread: vec3u) {
    let y = thread.y * TEXELS;
    if (y + TEXELS > parameters.height) { return; }
    var sum = vec4f(0.0);
    for (var i = 0u; i < TEXELS; i = i + 1u) { sum = sum + textureLoad(given, vec2u(thread.x, y + i)); }
    if (sum.x + sum.y + sum.z + sum.w == 12345.678) { found[0] = sum; }
}
