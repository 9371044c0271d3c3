{# Where a workgroup of the decode kernels stands: it serves query heads n_first to n_last of key/value head k, in batch
   entry b, over one part of the keys. Statements of their entry point. #}
    // Key/value heads lie closest, since their rows do.
    let head_blocks = (parameters.G + HEADS - 1u) / HEADS;
    var index = folded_index(workgroup, workgroups);
    let units = parameters.N / parameters.G * head_blocks;
    let unit = index % units;
    index /= units;
    let part = index % parameters.parts;
    let b = index / parameters.parts;
    if (b >= parameters.batch) {
        return;
    }
    let n_first = unit / head_blocks * parameters.G + unit % head_blocks * HEADS;
    let n_last = min(n_first + HEADS, (unit / head_blocks + 1u) * parameters.G) - 1u;
    let k = key_head(n_first);
