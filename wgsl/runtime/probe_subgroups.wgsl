// The subgroup size as it is, not as the adapter says, and whether shuffles give what they should.
// Four words a thread: size, lane, lane ^ 1 by a shuffle, lane 2 by a shuffle.

@group(0) @binding(0) var<storage, read_write> found: array<vec4u>;

@compute @workgroup_size(64)
fn probe_subgroups(
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let crossed = subgroupShuffleXor(lane, 1u);
    let broadcast = subgroupShuffle(lane, 2u);
    found[thread] = vec4u(size, lane, crossed, broadcast);
}
