{# Macros: 16x16 matrices that the 32 lanes of a subgroup hold together, of float16 ("left" and "right") or float32
   ("result"), and their ways to and from workgroup arrays. float16 lie in arrays of vec4u, eight an element, float32 in
   arrays of vec4f: places and pitches count such elements, so that lanes move 16 bytes at a time. A template's constant
   COLUMNS says how many columns right matrices and results have, where that is 8.
   EMULATED composes plain WGSL of the same meaning, for tests: a lane holds row `lane % 16`, of right matrices and
   results eight columns, and what the hardware keeps in order needs a barrier. #}

{% set columns = COLUMNS | default(16) %}
{# Of the emulation: which eight columns a lane holds. #}
{% set eight = "matrix_lane / 16u" if columns == 16 else "0u" %}

{% macro zero(use="result") -%}
{{ type(use) }}()
{%- endmacro %}

{% macro type(use) -%}
{% if EMULATED %}{{ use | capitalize }}Matrix{% else %}subgroup_matrix_{{ use }}<{{ "f32" if use == "result" else "f16" }}, {{ 16 if use == "left" else columns }}, 16>{% endif %}
{%- endmacro %}

{# The matrix at element `at` of an array, `pitch` elements from one row to the next, or with col_major one column. #}
{% macro load(use, array, at, pitch, order="row_major") -%}
{% if EMULATED %}{{ use }}_of_{{ array }}({{ at }}, {{ pitch }}, {{ (order == "col_major") | lower }})
{%- else %}subgroupMatrixLoad<{{ type(use) }}, {{ order }}>(&{{ array }}, {{ at }}, {{ pitch }})
{%- endif %}
{%- endmacro %}

{% macro store(array, at, pitch, matrix, order="row_major") -%}
{% if EMULATED %}result_to_{{ array }}({{ at }}, {{ pitch }}, {{ (order == "col_major") | lower }}, {{ matrix }})
{%- else %}subgroupMatrixStore<{{ order }}>(&{{ array }}, {{ at }}, {{ matrix }}, {{ pitch }})
{%- endif %}
{%- endmacro %}

{% macro multiply_add(left, right, sum) -%}
{{ "multiply_add" if EMULATED else "subgroupMatrixMultiplyAccumulate" }}({{ left }}, {{ right }}, {{ sum }})
{%- endmacro %}

{# What the emulation needs: its types, and its readers and writers of the named arrays. `bits` are arrays of vec4u that
   results are stored to, as the bits of float32. #}
{% macro emulation(lefts=(), rights=(), results=(), bits=()) -%}
%% if EMULATED
struct LeftMatrix {
    row: array<f32, 16>,
}

struct RightMatrix {
    rows: array<vec4f, 32>,
}

struct ResultMatrix {
    row: array<vec4f, 2>,
}

var<private> matrix_lane: u32;

fn multiply_add(left: LeftMatrix, right: RightMatrix, sum: ResultMatrix) -> ResultMatrix {
    var made = sum;
%% for k in range(16)
    made.row[0] += left.row[{{ k }}] * right.rows[{{ 2 * k }}];
    made.row[1] += left.row[{{ k }}] * right.rows[{{ 2 * k + 1 }}];
%% endfor
    return made;
}

%% for array in lefts
fn left_of_{{ array }}(at: u32, pitch: u32, by_column: bool) -> LeftMatrix {
    var made: LeftMatrix;
    if (by_column) {
        let row = matrix_lane % 16u;
%% for k in range(16)
        made.row[{{ k }}] = unpack2x16float({{ array }}[at + {{ k }}u * pitch + row / 8u][row / 2u % 4u])[row % 2u];
%% endfor
        return made;
    }
    let first = at + matrix_lane % 16u * pitch;
%% for k in range(0, 16, 2)
    let pair_{{ k }} = unpack2x16float({{ array }}[first + {{ k // 8 }}u][{{ k // 2 % 4 }}]);
    made.row[{{ k }}] = pair_{{ k }}.x;
    made.row[{{ k + 1 }}] = pair_{{ k }}.y;
%% endfor
    return made;
}

%% endfor
%% for array in rights
fn right_of_{{ array }}(at: u32, pitch: u32, by_column: bool) -> RightMatrix {
    var made: RightMatrix;
    let column = {{ eight }};
    if (by_column) {
%% for c in range(8)
%% for k in range(0, 16, 2)
        let pair_{{ c }}_{{ k }} = unpack2x16float({{ array }}[at + (8u * column + {{ c }}u) * pitch + {{ k // 8 }}u][{{ k // 2 % 4 }}]);
        made.rows[{{ 2 * k + c // 4 }}][{{ c % 4 }}] = pair_{{ c }}_{{ k }}.x;
        made.rows[{{ 2 * k + 2 + c // 4 }}][{{ c % 4 }}] = pair_{{ c }}_{{ k }}.y;
%% endfor
%% endfor
    } else {
%% for k in range(16)
        let words_{{ k }} = {{ array }}[at + {{ k }}u * pitch + column];
        made.rows[{{ 2 * k }}] = vec4f(unpack2x16float(words_{{ k }}.x), unpack2x16float(words_{{ k }}.y));
        made.rows[{{ 2 * k + 1 }}] = vec4f(unpack2x16float(words_{{ k }}.z), unpack2x16float(words_{{ k }}.w));
%% endfor
    }
    return made;
}

%% endfor
%% for array in results
fn result_of_{{ array }}(at: u32, pitch: u32, by_column: bool) -> ResultMatrix {
    let first = at + matrix_lane % 16u * pitch + {{ eight }} * 2u;
    return ResultMatrix(array<vec4f, 2>({{ array }}[first], {{ array }}[first + 1u]));
}

fn result_to_{{ array }}(at: u32, pitch: u32, by_column: bool, matrix: ResultMatrix) {
    let first = at + matrix_lane % 16u * pitch + {{ eight }} * 2u;
    if (by_column) {
        let row = matrix_lane % 16u;
%% for c in range(8)
        {{ array }}[at + ({{ eight }} * 8u + {{ c }}u) * pitch + row / 4u][row % 4u] = matrix.row[{{ c // 4 }}][{{ c % 4 }}];
%% endfor
        return;
    }
    {{ array }}[first] = matrix.row[0];
    {{ array }}[first + 1u] = matrix.row[1];
}

%% endfor
%% for array in bits
fn result_of_{{ array }}(at: u32, pitch: u32, by_column: bool) -> ResultMatrix {
    if (by_column) {
        var made: ResultMatrix;
        let row = matrix_lane % 16u;
%% for c in range(8)
        made.row[{{ c // 4 }}][{{ c % 4 }}] = bitcast<f32>({{ array }}[at + ({{ eight }} * 8u + {{ c }}u) * pitch + row / 4u][row % 4u]);
%% endfor
        return made;
    }
    let first = at + matrix_lane % 16u * pitch + {{ eight }} * 2u;
    return ResultMatrix(array<vec4f, 2>(bitcast<vec4f>({{ array }}[first]), bitcast<vec4f>({{ array }}[first + 1u])));
}

fn result_to_{{ array }}(at: u32, pitch: u32, by_column: bool, matrix: ResultMatrix) {
    let first = at + matrix_lane % 16u * pitch + {{ eight }} * 2u;
    if (by_column) {
        let row = matrix_lane % 16u;
%% for c in range(8)
        {{ array }}[at + ({{ eight }} * 8u + {{ c }}u) * pitch + row / 4u][row % 4u] = bitcast<u32>(matrix.row[{{ c // 4 }}][{{ c % 4 }}]);
%% endfor
        return;
    }
    {{ array }}[first] = bitcast<vec4u>(matrix.row[0]);
    {{ array }}[first + 1u] = bitcast<vec4u>(matrix.row[1]);
}

%% endfor
%% endif
{%- endmacro %}
