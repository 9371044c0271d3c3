// Uses neither its first resource nor its parameters: bindings that a shader does not touch are no trouble.

@group(0) @binding(0) var<storage, read> unused: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn fill(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&out)) { out[id.x] = id.x; }
}
