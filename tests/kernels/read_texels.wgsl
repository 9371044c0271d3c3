// Reads a texture back: an invocation a texel.
@group(0) @binding(0) var texels: texture_storage_2d<FORMAT, read>;
@group(0) @binding(1) var<storage, read_write> words: array<vec4u>;
struct Parameters {
    width: u32,
    height: u32,
}
@group(0) @binding(2) var<uniform> parameters: Parameters;

@compute @workgroup_size(8, 8)
fn read_texels(@builtin(global_invocation_id) at: vec3u) {
    if (at.x < parameters.width && at.y < parameters.height) {
        words[at.y * parameters.width + at.x] = bitcast<vec4u>(textureLoad(texels, at.xy));
    }
}
