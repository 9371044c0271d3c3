{# Logits of four keys with their bias and mask, whose reads wait together. For rows that keep a tile's every key. #}
%% if problem.mask
// The mask of four keys that lie one behind the other, a byte each; the first may lie anywhere in a word.
fn mask_of_four(at: u32) -> u32 {
    let shift = 8u * (at % 4u);
    let low = mask[at / 4u];
    let high = mask[(at + 3u) / 4u];
    return select((low >> shift) | (high << (32u - shift)), low, shift == 0u);
}

%% endif
// The logits of keys s to s + 3 for row t from the scaled products, as logit() has one.
fn logits_of_four(products: vec4f, b: u32, n: u32, t: u32, s: u32) -> vec4f {
%% if problem.softcap
    var x = vec4f(capped(products.x), capped(products.y), capped(products.z), capped(products.w));
%% else
    var x = products;
%% endif
    var keep = vec4<bool>(true);
%% if problem.bias is not none
    let first = bias_row(b, n, t) + (s - parameters.key_first) * parameters.bias_s;
    let places = first + vec4u(0u, 1u, 2u, 3u) * parameters.bias_s;
%% if bias_name == "f32"
    let bits = vec4u(bias[places.x], bias[places.y], bias[places.z], bias[places.w]);
    keep = bits != vec4u(0xff800000u);
    x += bitcast<vec4f>(bits);
%% else
    let words = vec4u(bias[places.x / 2u], bias[places.y / 2u], bias[places.z / 2u], bias[places.w / 2u]);
    let bits = (words >> (16u * (places % 2u))) & vec4u(0xffffu);
    keep = bits != vec4u({{ "0xfc00u" if bias_name == "f16" else "0xff80u" }});
    x += vec4f(unpack_{{ bias_name }}(bits.x).x, unpack_{{ bias_name }}(bits.y).x, unpack_{{ bias_name }}(bits.z).x, unpack_{{ bias_name }}(bits.w).x);
%% endif
    // As in logit(): what is kept is never lower.
    let found = bitcast<vec4u>(x);
    x = select(x, vec4f(LOWEST_KEPT), (found == vec4u(0xff7fffffu)) | (found == vec4u(0xff800000u)));
%% endif
%% if problem.mask
    let bytes = vec4u(mask_of_four(mask_row(b, n, t) + s - parameters.key_first));
    keep = keep & ((bytes & vec4u(0xffu, 0xff00u, 0xff0000u, 0xff000000u)) != vec4u());
%% endif
    return select(vec4f(MASKED), x, keep);
}
