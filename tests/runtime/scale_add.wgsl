// out = x · scale + shift, a thread an element.

struct Parameters { scale: f32, shift: f32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> parameters: Parameters;

@compute @workgroup_size(64)
fn scale_add(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&x)) { out[id.x] = x[id.x] * parameters.scale + parameters.shift; }
}
