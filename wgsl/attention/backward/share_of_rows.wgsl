{# A pair's share from its four rows, by one thread. #}
fn share_of_rows(of_query: u32, of_grad: u32, of_key: u32, of_value: u32, b: u32, n: u32, t: u32, s: u32, kept: Kept, row: Statistics) -> Share {
    var product = vec4f();
    for (var chunk = 0u; chunk < HEAD_DIM / 4u; chunk++) {
        product += load_query(of_query, chunk) * load_key(of_key, chunk);
    }
    var by_weight = vec4f();
    for (var chunk = 0u; chunk < VALUE_DIM / 4u; chunk++) {
        by_weight += load_grad_out(of_grad, chunk) * load_value(of_value, chunk);
    }
    return share_of(sum_of(product), sum_of(by_weight), b, n, t, s, kept, row);
}

fn sum_of(four: vec4f) -> f32 {
    return (four.x + four.y) + (four.z + four.w);
}
