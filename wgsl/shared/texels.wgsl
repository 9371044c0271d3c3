{# Macros: rows of heads in textures (see texture.py). They need the bindings, parameters.NAME_rows and NAME_width, and FOLD. #}

{# Where the texels of a head's row `index` of batch entry b start. #}
{% macro place(name, head_width) -%}
fn {{ name }}_place(b: u32, index: u32, head: u32) -> vec2u {
    let row = b * parameters.{{ name }}_rows + index;
    return vec2u((row >> FOLD) * parameters.{{ name }}_width + head * {{ head_width }}u, row & ((1u << FOLD) - 1u));
}
{% endmacro %}

{# Elements 4 · quad to 4 · quad + 3 of a texel, as f32. #}
{% macro four(texel, dtype, quad) -%}
{% if dtype == "f32" %}{{ texel }}
{%- elif quad == 0 %}vec4f(unpack_{{ dtype }}({{ texel }}.x), unpack_{{ dtype }}({{ texel }}.y))
{%- else %}vec4f(unpack_{{ dtype }}({{ texel }}.z), unpack_{{ dtype }}({{ texel }}.w))
{%- endif %}
{%- endmacro %}
