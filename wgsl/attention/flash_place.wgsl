{# Where a workgroup of the flash kernels stands: it serves rows t_first to t_last of query heads n_first to n_last,
   which read key/value head k, in batch entry b, over one part of the keys. Statements of their entry point. #}
    // Heads lie closest, so that workgroups of one key/value head run together; blocks of rows furthest.
    let blocks = (parameters.T + TILE_T - 1u) / TILE_T;
    var index = folded_index(workgroup, workgroups);
%% if HEADS > 1
    let head_blocks = (parameters.G + HEADS - 1u) / HEADS;
    let units = parameters.N / parameters.G * head_blocks;
    let unit = index % units;
    let n_first = unit / head_blocks * parameters.G + unit % head_blocks * HEADS;
    let n_last = min(n_first + HEADS, (unit / head_blocks + 1u) * parameters.G) - 1u;
%% else
    let units = parameters.N;
    let n_first = index % units;
    let n_last = n_first;
%% endif
    index /= units;
    let b = index % parameters.batch;
    index /= parameters.batch;
    let part = index % parameters.parts;
    index /= parameters.parts;
    if (index >= blocks) {
        return;
    }
    // The last rows keep the most keys under a causal mask: they start first.
    let t_first = (blocks - 1u - index) * TILE_T;
    let t_last = min(t_first + TILE_T, parameters.T) - 1u;
    let k = key_head(n_first);
