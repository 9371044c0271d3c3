// The sum of each row of texels: a texture read, and no use of anything but what is bound.

struct Parameters { width: u32 }

@group(0) @binding(0) var rows: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(2) var<uniform> parameters: Parameters;

@compute @workgroup_size(1)
fn sum_rows(@builtin(workgroup_id) workgroup: vec3u) {
    var sum = vec4f(0.0);
    for (var x = 0u; x < parameters.width; x = x + 1u) { sum = sum + textureLoad(rows, vec2u(x, workgroup.x)); }
    out[workgroup.x] = sum;
}
