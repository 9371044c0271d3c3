{# Macros: rows of heads in textures (see texture.py). They need the bindings, the parameters of texture.fields(NAME), and FOLD. #}

{# Where the texels of a head's row `index` of batch entry b start. #}
{% macro place(name) -%}
fn {{ name }}_place(b: u32, index: u32, head: u32) -> vec2u {
    let row = b * parameters.{{ name }}_rows + (index >> parameters.{{ name }}_side);
    let beside = index & ((1u << parameters.{{ name }}_side) - 1u);
    let x = (row >> FOLD) * parameters.{{ name }}_width + beside * parameters.{{ name }}_token + head * parameters.{{ name }}_head;
    return vec2u(x, row & ((1u << FOLD) - 1u));
}
{% endmacro %}

{# Elements 4 · quad to 4 · quad + 3 of a texel, as f32. #}
{% macro four(texel, dtype, quad) -%}
{% if dtype == "f32" %}{{ texel }}
{%- elif quad == 0 %}vec4f(unpack_{{ dtype }}({{ texel }}.x), unpack_{{ dtype }}({{ texel }}.y))
{%- else %}vec4f(unpack_{{ dtype }}({{ texel }}.z), unpack_{{ dtype }}({{ texel }}.w))
{%- endif %}
{%- endmacro %}
