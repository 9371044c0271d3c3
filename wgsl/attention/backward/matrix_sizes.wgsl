{# What the backward kernels on matrix units share: how weights and gradients by scores fit float16, and where the
   latter lie when they are kept. #}
const WEIGHT_SIZE: f32 = 16384.0;
const WEIGHT_BITS: f32 = 14.0;

// A gradient by a weight has VALUE_DIM products; less delta, which is a mean of such, at most twice as many. With this
// factor it is at most 2, and times WEIGHT_SIZE half of what float16 holds.
fn factor_for(grad_out: f32, value: f32) -> f32 {
    return 1.0 / max(grad_out * value * f32(VALUE_DIM), 1e-30);
}

// The largest element of V and of grad_out that a key/value head has.
fn largest_of(b: u32, k: u32) -> vec2f {
    let at = parameters.largest_at + 2u * LARGEST_PARTS * (batch_of(b) * (parameters.N_all / parameters.G) + parameters.k_first + k);
    var largest = vec2u();
    for (var part = 0u; part < LARGEST_PARTS; part++) {
        largest = max(largest, vec2u(rows[at + 2u * part], rows[at + 2u * part + 1u]));
    }
    return bitcast<vec2f>(largest);
}

fn eight(a: vec4f, b: vec4f) -> vec4u {
    return vec4u(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

%% if "scores" in BOUND
// Where the gradients by scores of 16 rows from t on and 16 keys from s on lie, an element of 16 bytes after another.
fn scores_at(b: u32, n: u32, t: u32, s: u32) -> u32 {
    let tiles = vec2u(parameters.T + 15u, parameters.key_end - parameters.key_first + 15u) / 16u;
    return (((b * parameters.N + n) * tiles.x + t / 16u) * tiles.y + (s - parameters.key_first) / 16u) * 32u;
}

%% endif
