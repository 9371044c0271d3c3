// The least and greatest segment id of query rows t_first to t_last, or of keys [first, end). Every thread reads the
// same words, so the answer is uniform.
fn query_segment_range(b: u32, t_first: u32, t_last: u32) -> vec2i {
    var ids = vec2i(bitcast<i32>(row_query_segments(b, parameters.t_first + t_first)));
    for (var t = t_first + 1u; t <= t_last; t++) {
        let id = bitcast<i32>(row_query_segments(b, parameters.t_first + t));
        ids = vec2i(min(ids.x, id), max(ids.y, id));
    }
    return ids;
}

fn key_segment_range(b: u32, first: u32, end: u32) -> vec2i {
    var ids = vec2i(bitcast<i32>(row_key_segments(b, first)));
    for (var s = first + 1u; s < end; s++) {
        let id = bitcast<i32>(row_key_segments(b, s));
        ids = vec2i(min(ids.x, id), max(ids.y, id));
    }
    return ids;
}
