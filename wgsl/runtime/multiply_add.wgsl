// How many multiplications and additions the device does: eight chains a thread that do not wait for each other, few
// enough to stay in the registers of a CPU. Some compilers make one instruction of fma(), some of * and +.

struct Parameters { turns: u32, fused: u32 }

@group(0) @binding(0) var<storage, read_write> found: array<f32>; // one a thread
@group(0) @binding(1) var<uniform> parameters: Parameters;

@compute @workgroup_size(128)
fn multiply_add(@builtin(global_invocation_id) thread: vec3u) {
    let start = f32(thread.x & 1023u) * 1e-3;
    let factor = vec4f(0.5 + start * 1e-3);
    let term = vec4f(1.0 - start);
    var a = vec4f(start, 1.0, 2.0, 3.0);
    var b = a + 0.5;
    if (parameters.fused == 1u) {
        for (var turn = 0u; turn < parameters.turns; turn = turn + 1u) {
            a = fma(a, factor, term); b = fma(b, factor, term); a = fma(a, factor, term); b = fma(b, factor, term);
            a = fma(a, factor, term); b = fma(b, factor, term); a = fma(a, factor, term); b = fma(b, factor, term);
            a = fma(a, factor, term); b = fma(b, factor, term); a = fma(a, factor, term); b = fma(b, factor, term);
            a = fma(a, factor, term); b = fma(b, factor, term); a = fma(a, factor, term); b = fma(b, factor, term);
        }
    } else {
        for (var turn = 0u; turn < parameters.turns; turn = turn + 1u) {
            a = a * factor + term; b = b * factor + term; a = a * factor + term; b = b * factor + term;
            a = a * factor + term; b = b * factor + term; a = a * factor + term; b = b * factor + term;
            a = a * factor + term; b = b * factor + term; a = a * factor + term; b = b * factor + term;
            a = a * factor + term; b = b * factor + term; a = a * factor + term; b = b * factor + term;
        }
    }
    let sum = a + b;
    found[thread.x] = (sum.x + sum.y) + (sum.z + sum.w);
}
