{# Where a workgroup of a sweep stands: it owns rows first_own to last_own of one side and one head, in batch entry b;
   the launch has some up to own_end. They may have pairs with rows of the other side in `span`. Statements of its entry
   point; by key and value, query heads of key/value head k are its `sharing`. #}
    // Heads lie closest, so that workgroups of one key/value head run together; blocks of rows furthest.
    var index = folded_index(workgroup, workgroups);
%% if BY == "query"
    let heads = parameters.N;
    let own_start = 0u;
    let own_end = parameters.T;
%% else
    let heads = key_heads();
    let sharing = sharing_heads();
    let own_start = parameters.key_first;
    let own_end = parameters.key_end;
%% endif
    let blocks = (own_end - own_start + OWN - 1u) / OWN;
    let head = index % heads;
    index /= heads;
    let b = index % parameters.batch;
    index /= parameters.batch;
    if (index >= blocks) {
        return;
    }
%% if BY == "query"
    // The last rows keep the most keys under a causal mask: they start first.
    let first_own = (blocks - 1u - index) * OWN;
    let last_own = min(first_own + OWN, own_end) - 1u;
    let n = head;
    let k = key_head(n);
    let span = block_keys(b, first_own, last_own, parameters.key_first, parameters.key_end);
%% else
    // The first keys are kept by the most rows under a causal mask: they start first.
    let first_own = own_start + index * OWN;
    let last_own = min(first_own + OWN, own_end) - 1u;
    let k = head;
    let span = query_rows(b, first_own, last_own + 1u);
%% endif
