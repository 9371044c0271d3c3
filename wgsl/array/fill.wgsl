{% include "shared/prelude.wgsl" %}

// One value for every element; its bits come from the host.
fn element() -> u32 {
    return parameters.value_bits;
}
{% include "array/pointwise.wgsl" %}
