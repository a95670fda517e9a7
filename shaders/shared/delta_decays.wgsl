// Decays and scales of a chunk's tokens, in workgroup memory. Uses `tile` meanwhile.

#import shared/delta_gates

// Per token: G in two parts, beta, e^G.
var<workgroup> gate: array<vec4<f32>, CHUNK>;
// Per token: 1 / (|q| sqrt(d_k)), 1 / |k|.
var<workgroup> norm: array<vec2<f32>, CHUNK>;

// For value head `head` and the C tokens from `first` on. Past the end all but the decays are 0.
fn prepare(local: u32, head: u32, first: u32) {
    for (var at = local; at < 4u * CHUNK; at += WG) {
        let token = first + at / 4u;
        var squares = vec2<f32>();
        var g = 0.0;
        var rate = 0.0;
        if token < p.n {
            for (var quad = at % 4u; quad < p.heads.quads; quad += 4u) {
                let q = u[q_start(token, head) + quad];
                let k = u[k_start(token, head) + quad];
                squares += vec2(dot(q, q), dot(k, k));
            }
            if at % 4u == 0u {
                let place = 2u * token * p.heads.value + head;
                g = log_decay(gates[place], dt_bias[head], ssm_a[head]);
                rate = sigmoid(gates[place + p.heads.value]);
            }
        }
        tile[at] = vec4(squares, g, rate);
    }
    workgroupBarrier();
    for (var i = local; i < CHUNK; i += WG) {
        let sums = tile[4u * i] + tile[4u * i + 1u] + tile[4u * i + 2u] + tile[4u * i + 3u];
        let inverse = vec2(inverse_norm(sums.x) / sqrt(f32(head_dim())), inverse_norm(sums.y));
        // Differences of G matter where G itself is large, so it is kept in two parts: multiples of
        // 1/1024, whose sums are exact (|G| <= 64 * 104), and the rest.
        var sum = vec2<f32>();
        for (var j = 0u; j <= i; j++) {
            let g = tile[4u * j].z;
            let coarse = round(g * 1024.0) / 1024.0;
            sum += vec2(coarse, g - coarse);
        }
        norm[i] = select(vec2<f32>(), inverse, first + i < p.n);
        gate[i] = vec4(sum, sums.w, exp(sum.x + sum.y));
    }
    workgroupBarrier();
}

// G of four rows less that of another, or of none.
fn log_decays(rows: u32, origin: vec2<f32>) -> vec4<f32> {
    let a = gate[4u * rows].xy - origin;
    let b = gate[4u * rows + 1u].xy - origin;
    let c = gate[4u * rows + 2u].xy - origin;
    let d = gate[4u * rows + 3u].xy - origin;
    return vec4(a.x + a.y, b.x + b.y, c.x + c.y, d.x + d.y);
}

// Decays of four rows since token j. Before it the logarithm is positive: never exponentiated.
fn decays_since(j: u32, rows: u32) -> vec4<f32> {
    return exp(min(log_decays(rows, gate[j].xy), vec4(0.0)));
}

// Decays from four rows to the chunk's end.
fn decays_left(rows: u32) -> vec4<f32> {
    return exp(min(-log_decays(rows, gate[CHUNK - 1u].xy), vec4(0.0)));
}
