{# What every kernel starts with. Included first by each kernel file. #}
// {{ VARIANT }}
%% if "shader-f16" in FEATURES
enable f16;
%% endif
%% if "subgroup" in FEATURES and DIALECT == "dawn"
enable subgroups;
// Branches that depend on a subgroup's own values are the same for all of its lanes, which the compiler cannot see.
diagnostic(off, subgroup_uniformity);
%% endif
%% if "matrix" in FEATURES
enable chromium_experimental_subgroup_matrix;
// Subgroups take ways of their own through a workgroup, each as a whole.
diagnostic(off, chromium.subgroup_matrix_uniformity);
%% endif
%% for name, value in SCALARS.items()
%% if value is boolean
const {{ name }}: bool = {{ "true" if value else "false" }};
%% elif value is integer
const {{ name }}: u32 = {{ value }}u;
%% else
const {{ name }}: f32 = {{ value }};
%% endif
%% endfor

%% for binding in BINDINGS
%% if binding.access == "read"
@group(0) @binding({{ loop.index0 }}) var<storage, read> {{ binding.name }}: array<{{ binding.element }}>;
%% elif binding.access == "write"
@group(0) @binding({{ loop.index0 }}) var<storage, read_write> {{ binding.name }}: array<{{ binding.element }}>;
%% elif binding.access == "texture"
@group(0) @binding({{ loop.index0 }}) var {{ binding.name }}: texture_storage_2d<{{ binding.element }}, read>;
%% else
@group(0) @binding({{ loop.index0 }}) var {{ binding.name }}: texture_storage_2d<{{ binding.element }}, write>;
%% endif
%% endfor

struct Parameters {
%% for name, kind in PARAMETERS
    {{ name }}: {{ kind }},
%% endfor
}
@group(0) @binding({{ BINDINGS | length }}) var<uniform> parameters: Parameters;

// The workgroup's place in a grid that was folded to keep every side within the device's limit.
fn folded_index(workgroup: vec3u, workgroups: vec3u) -> u32 {
    return workgroup.x + workgroups.x * (workgroup.y + workgroups.y * workgroup.z);
}
