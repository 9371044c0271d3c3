{# Where kept gradients by scores lie. #}
// The gradients by scores of four rows from t on, a multiple of four, and key s: 64 rows of a key lie together, then
// those of the next key.
fn scores_at(b: u32, n: u32, t: u32, s: u32) -> u32 {
    let keys = parameters.key_end - parameters.key_first;
    let block = (b * parameters.N + n) * ((parameters.T + 63u) / 64u) + t / 64u;
    return (block * keys + s - parameters.key_first) * 16u + t % 64u / 4u;
}
