{# Macros: 16 x 16 matrices that the lanes of a subgroup hold together, of float16 (left, right) and float32 (sums). All
   lie in workgroup memory by rows of words: offsets and pitches count elements of the array, of `words` 32-bit words.
   MATRICES "units": the device's matrix units, which Dawn alone has. "loops": the same in loops over what lies in
   memory, for tests where there are none; there a loaded matrix is its place, so memory must not change until it is
   used. Needs LANES, and `lane` where it is used. Import it with its context. #}

{# What the loops need: a reader of halves for every array that left or right matrices are loaded from. #}
{% macro reader(array, words) -%}
%% if MATRICES == "loops"
fn half_of_{{ array }}(at: u32, half: u32) -> f32 {
    let word = {{ words }}u * at + half / 2u;
    return unpack2x16float({{ array }}[word / {{ words }}u][word % {{ words }}u])[half % 2u];
}
%% endif
{%- endmacro %}

{# `side`: left or right; `order`: row_major, or col_major where the array's rows are the matrix's columns. #}
{% macro load(name, side, order, array, at, pitch) -%}
%% if MATRICES == "loops"
let {{ name }} = {{ at }};
%% else
let {{ name }} = subgroupMatrixLoad<subgroup_matrix_{{ side }}<f16, 16, 16>, {{ order }}>(&{{ array }}, {{ at }}, {{ pitch }});
%% endif
{%- endmacro %}

{% macro zeros(name) -%}
%% if MATRICES == "loops"
var {{ name }} = array<f32, 256 / LANES>();
%% else
var {{ name }} = subgroup_matrix_result<f32, 16, 16>();
%% endif
{%- endmacro %}

{# sum += left · right, both loaded; (array, pitch) say where from, and `order` how the right one lies. #}
{% macro multiply(sum, left, left_from, right, right_from, order) -%}
%% if MATRICES == "loops"
for (var i = 0u; i < 256u / LANES; i++) {
    let row = (lane + i * LANES) / 16u;
    let column = (lane + i * LANES) % 16u;
    for (var j = 0u; j < 16u; j++) {
        {{ sum }}[i] += half_of_{{ left_from[0] }}({{ left }} + row * {{ left_from[1] }}, j)
%% if order == "row_major"
            * half_of_{{ right_from[0] }}({{ right }} + j * {{ right_from[1] }}, column);
%% else
            * half_of_{{ right_from[0] }}({{ right }} + column * {{ right_from[1] }}, j);
%% endif
    }
}
%% else
{{ sum }} = subgroupMatrixMultiplyAccumulate({{ left }}, {{ right }}, {{ sum }});
%% endif
{%- endmacro %}

{# Sums as float32, to an array whose elements are vec2f (words 2), or vec4u that hold their bits (words 4). #}
{% macro store(sum, array, at, pitch, words) -%}
%% if MATRICES == "loops"
for (var i = 0u; i < 256u / LANES; i++) {
    let place = {{ at }} + (lane + i * LANES) / 16u * {{ pitch }} + (lane + i * LANES) % 16u / {{ words }}u;
    {{ array }}[place][(lane + i * LANES) % {{ words }}u] = {{ sum ~ "[i]" if words == 2 else "bitcast<u32>(" ~ sum ~ "[i])" }};
}
%% else
subgroupMatrixStore<row_major>(&{{ array }}, {{ at }}, {{ sum }}, {{ pitch }});
%% endif
{%- endmacro %}

{# Sums that were stored to an array of vec2f, and perhaps changed there. #}
{% macro restore(sum, array, at, pitch) -%}
%% if MATRICES == "loops"
for (var i = 0u; i < 256u / LANES; i++) {
    {{ sum }}[i] = {{ array }}[{{ at }} + (lane + i * LANES) / 16u * {{ pitch }} + (lane + i * LANES) % 16u / 2u][(lane + i * LANES) % 2u];
}
%% else
{{ sum }} = subgroupMatrixLoad<subgroup_matrix_result<f32, 16, 16>, row_major>(&{{ array }}, {{ at }}, {{ pitch }});
%% endif
{%- endmacro %}

{# Sixteen stored bytes as float16 in two words of eight: the even bytes, and the odd ones. f8e4m3 comes out 256 times
   too small: its bits are those of float16 with an exponent 8 too low, and all ones become a NaN. #}
{% macro halves(dtype) -%}
%% if dtype == "i8"
// Two bytes with their signs turned, below the bits of 1024: as float16 these are 1152 more than the bytes say.
fn less_1152(word: u32) -> u32 {
%% if MATRICES == "loops"
    return pack2x16float(unpack2x16float(word) - 1152.0);
%% else
    return bitcast<u32>(bitcast<vec2<f16>>(word) - vec2<f16>(1152.0h));
%% endif
}

fn even_halves(words: vec4u) -> vec4u {
    let four = (words & vec4u(0x00ff00ffu)) ^ vec4u(0x64806480u);
    return vec4u(less_1152(four.x), less_1152(four.y), less_1152(four.z), less_1152(four.w));
}

fn odd_halves(words: vec4u) -> vec4u {
    return even_halves(words >> vec4u(8u));
}
%% elif dtype == "f8e4m3"
// Bytes without their signs, all ones as 0xff: the bit below the sign of a float16 makes of these a NaN.
fn without_signs(words: vec4u) -> vec4u {
    let plain = words & vec4u(0x7f7f7f7fu);
    return plain | ((plain + vec4u(0x01010101u)) & vec4u(0x80808080u));
}

fn even_halves(words: vec4u) -> vec4u {
    return ((without_signs(words) << vec4u(7u)) & vec4u(0x7f807f80u)) | ((words << vec4u(8u)) & vec4u(0x80008000u));
}

fn odd_halves(words: vec4u) -> vec4u {
    return ((without_signs(words) >> vec4u(1u)) & vec4u(0x7f807f80u)) | (words & vec4u(0x80008000u));
}
%% elif dtype == "f8e5m2"
fn even_halves(words: vec4u) -> vec4u {
    return (words << vec4u(8u)) & vec4u(0xff00ff00u);
}

fn odd_halves(words: vec4u) -> vec4u {
    return words & vec4u(0xff00ff00u);
}
%% endif
{%- endmacro %}
