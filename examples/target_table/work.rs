//! What a kernel costs against what it moves or multiplies: in a round of its main loop, or in a whole
//! dispatch where that is small.

use crate::{
    figures::opcode,
    moved::{Moved, moved},
};
use engine::{
    quant::BlockType,
    shader::{Value, Variant},
};

/// What one lane does in a round of the loop that does the work.
pub(crate) enum Work {
    /// Reads or writes so many bytes that no other lane has, which come from memory.
    Stream(f64),
    /// Multiplies and adds so often.
    Multiply(f64),
}

/// The number that `variant` has for `name`.
pub(crate) fn number(variant: &Variant, name: &str) -> Option<f64> {
    match variant.get(name) {
        Some(Value::Number(n)) => Some(f64::from(*n)),
        _ => None,
    }
}

/// Bytes of a number in the format that `variant` chooses for `name`.
pub(crate) fn bytes(variant: &Variant, name: &str) -> Option<f64> {
    let Some(Value::Word(name)) = variant.get(name) else { return None };
    let ty = BlockType::ALL.iter().find(|ty| ty.name().eq_ignore_ascii_case(name))?;
    Some(ty.block_bytes() as f64 / ty.block_elements() as f64)
}

/// A loop and how often those inside it run in each of its rounds, in the program's order.
struct Rounds(Work, Vec<f64>);

/// What `variant` does, where that is much: decoding streams weights, state, keys and values,
/// prefill multiplies.
fn rounds(variant: &Variant) -> Option<Rounds> {
    let number = |name| number(variant, name);
    let bytes = |name| bytes(variant, name);
    Some(match variant.shader() {
        // 16 weights of each row.
        "mat_vec" => Rounds(Work::Stream(16.0 * number("ROWS")? * bytes("format")?), vec![]),
        "expert_down" => Rounds(Work::Stream(64.0 * bytes("format")?), vec![]),
        // 32 keys and values over 256 lanes; for each, four rows at a time.
        "attention_decode" => {
            let bytes = bytes("K")? + bytes("V")?;
            let rows = number("HEADS")? * number("TOKENS")?;
            Rounds(Work::Stream(number("D")? * bytes / 8.0), vec![(rows / 4.0).ceil(), 4.0])
        }
        // 8 values of 4 blocks.
        "index_scores" => Rounds(Work::Stream(32.0 * bytes("T")?), vec![]),
        // 16 values of the state, read and written, by one token.
        "gated_delta_step" => Rounds(Work::Stream(128.0), vec![1.0, 1.0]),
        // 32 weights of 64 rows with as many of each row of x, over 64 lanes: a lane loads its share
        // of x, then multiplies 4 at a time.
        "tile_product" => {
            let rows = number("TM")?;
            Rounds(Work::Multiply(32.0 * rows), vec![rows / 8.0, 8.0])
        }
        // 128 rows over 256 lanes; matrix units make four products in the time of one.
        "coop_product" => Rounds(Work::Multiply(4.0 * number("TM")?), vec![]),
        // Two products of 64 keys with all rows over 256 lanes. 16 dims of the one at a time, 4 of them
        // in a round; 16 keys of the other, an odd and an even stage of 8.
        "attention_prefill" => {
            let products = number("D")? * number("HEADS")? * number("TOKENS")? / 2.0;
            let inner = vec![number("D")? / 16.0, 4.0, 4.0, 8.0, 8.0];
            Rounds(Work::Multiply(products), inner)
        }
        // The same, 32 dims at a time; sums are joined seldom.
        "coop_attention" => {
            let products = number("D")? * number("HEADS")? * number("TOKENS")? / 2.0;
            let inner = vec![number("D")? / 32.0, 0.0, 4.0];
            Rounds(Work::Multiply(products / 4.0), inner)
        }
        // A chunk of 64 tokens: 4 x 4 values a lane of N and o, from all rows of the state and up to 16
        // quads of tokens, then two blocks of the state from as many.
        "gated_delta_scan" => {
            let products = 2.0 * 128.0 * 16.0 + 8.5 * 64.0 + 2.0 * 16.0 * 64.0;
            Rounds(Work::Multiply(products), vec![32.0, 16.0, 2.0, 16.0])
        }
        // The same for 32 columns over 256 lanes, and the products with T; two quads of results.
        "coop_delta_scan" => {
            let products = 8.0 * (2.0 * 128.0 + 2.0 * 40.0 + 128.0);
            Rounds(Work::Multiply(products / 4.0), vec![4.0, 2.0])
        }
        _ => return None,
    })
}

/// Kernels that no token waits for: of steps of several tokens, and of software instead of a GPU.
const SET_ASIDE: &[&str] = &[
    "coop_delta_chunk",
    "expert_counts",
    "expert_lists",
    "f16_rows",
    "gated_delta_chunk",
    "gated_delta_columns",
    "kv_pages",
    "kv_stage",
];

/// What is not stated of `variant`, or no longer so: every kernel has a main loop, or is small, or is set
/// aside, and the small ones have as many loops as rounds are stated for.
pub(crate) fn unstated(variant: &Variant, code: &str) -> Option<String> {
    if let Some(Moved { rounds, .. }) = moved(variant) {
        let (found, stated) = (loops(code).len() - 1, rounds.len());
        return (found != stated).then(|| {
            format!("{variant} has {found} loops, moved.rs has rounds for {stated}: state each")
        });
    }
    let known = rounds(variant).is_some() || SET_ASIDE.contains(&variant.shader());
    (!known).then(|| {
        format!(
            "{variant} is in no class: state its main loop in work.rs, or what a token has it move in \
             moved.rs, or that no token waits for it in SET_ASIDE"
        )
    })
}

/// What a dispatch of a small kernel may take all vector units, in nanoseconds, whatever its bytes take:
/// less than a tenth of the 1.9 us that wgpu takes to encode one (gfx-rs/wgpu#5766). The most is that of
/// `routing`, which compares each of 512 experts with all.
pub(crate) const SMALL: u64 = 160;

/// The most that a kernel may take on `target`, in percent of the time of its bytes; `before` is what is
/// stated.
pub(crate) fn most(variant: &Variant, target: &str, before: u64) -> u64 {
    let is = |name, word| variant.get(name) == Some(&Value::Word(word));
    // The arithmetic of half a byte takes as long as the byte where 6 or 8 heads multiply each 4-bit key
    // and value, or eight rows of x in f32 each 4-bit weight with an offset.
    let excused = match variant.shader() {
        "attention_decode" => is("K", "q4_0") && is("V", "q4_0"),
        "mat_vec" => is("format", "q4_k") && number(variant, "N") == Some(8.0),
        _ => false,
    };
    match target {
        // The one that the bound is promised for.
        "GFX1151" if excused && variant.get("whole").is_none() => 110,
        "GFX1151" => 100,
        // Memory is faster there for each vector unit: weights of 1 to 3 bits and quantised caches take
        // longer to unpack than to read, but not longer than is stated.
        _ => before.max(99),
    }
}

/// A loop of the program; the first is the whole program.
#[derive(Default)]
struct Loop {
    parent: usize,
    /// Cycles of the vector unit outside of loops inside this one, for 32 lanes.
    cycles: f64,
    /// Reads and writes of workgroup memory there.
    lds: f64,
    /// Bytes that its loads fetch, and its stores leave.
    loads: u32,
    stores: u32,
}

/// The program's loops in order.
fn loops(code: &str) -> Vec<Loop> {
    let mut loops = vec![Loop::default()];
    let mut now = 0;
    for line in code.lines() {
        if let Some((_, kind)) = line.split_once("/ kind: ") {
            for _ in kind.matches("loop-exit") {
                now = loops[now].parent;
            }
            if kind.contains("loop-header") {
                loops.push(Loop { parent: now, ..Loop::default() });
                now = loops.len() - 1;
            }
        } else if let Some(opcode) = opcode(line) {
            // A quarter of the lanes has a unit for these.
            let slow = ["v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos"];
            if opcode.starts_with("v_") {
                loops[now].cycles += match opcode {
                    // 16 x 16 x 16 products; half of that time on RDNA4.
                    _ if opcode.starts_with("v_wmma") => 16.0,
                    _ if slow.iter().any(|s| opcode.starts_with(s)) => 4.0,
                    _ => 1.0,
                };
            }
            loops[now].lds += if opcode.starts_with("ds_") { 1.0 } else { 0.0 };
            loops[now].loads += match opcode {
                "buffer_load_dwordx4" => 16,
                "buffer_load_dwordx2" => 8,
                "buffer_load_dword" => 4,
                _ => 0,
            };
            loops[now].stores += if opcode == "buffer_store_dwordx4" { 16 } else { 0 };
        }
    }
    loops
}

/// What the main loop of `variant` does in a round of one lane, and the cycles of the vector unit
/// that a round takes for 32 lanes. The main loop is the one that loads most bytes, and for products
/// the outermost around it.
pub(crate) fn main_loop(variant: &Variant, code: &str) -> Option<(Work, f64)> {
    let Rounds(work, inner) = rounds(variant)?;
    let loops = loops(code);
    // Products have loops: what they load outside of them is little.
    let multiplies = matches!(work, Work::Multiply(_));
    let first = usize::from(multiplies);
    let most = loops[first..].iter().map(|l| l.loads).max()?;
    let mut main = first + loops[first..].iter().position(|l| l.loads == most)?;
    while multiplies && loops[main].parent > 0 {
        main = loops[main].parent;
    }
    let runs = runs(&loops, main, inner);
    Some((work, loops.iter().zip(&runs).map(|(l, runs)| l.cycles * runs).sum()))
}

/// How often each loop runs in a round of `main`, of those inside of which `inner` tells it.
fn runs(loops: &[Loop], main: usize, inner: Vec<f64>) -> Vec<f64> {
    let mut runs = vec![0.0; loops.len()];
    runs[main] = 1.0;
    let mut inner = inner.into_iter();
    for i in main + 1..loops.len() {
        let outer = runs[loops[i].parent];
        if loops[i].parent >= main && outer > 0.0 {
            // More than any that is not stated: the largest run of weights.
            runs[i] = outer * inner.next().unwrap_or(16.0);
        }
    }
    runs
}

/// The bytes of a dispatch of the small kernel `variant`, and the cycles of one vector unit that it
/// takes, all branches taken. Those of workgroup memory, which serves two units 32 lanes a cycle, come
/// to them as if neither worked while the other does.
pub(crate) fn dispatch(variant: &Variant, code: &str) -> Option<(f64, f64)> {
    let Moved { bytes, lanes, rounds } = moved(variant)?;
    let loops = loops(code);
    let runs = runs(&loops, 0, rounds);
    let cycles: f64 =
        loops.iter().zip(&runs).map(|(l, runs)| (l.cycles + 2.0 * l.lds) * runs).sum();
    Some((bytes, cycles * lanes / 32.0))
}

/// What `variant`, if it keeps a state in registers over all tokens, does to it more than reading and
/// writing it once, by 16 bytes: 64 bytes a lane before the loop over tokens, and as many after it.
pub(crate) fn state_fault(variant: &Variant, code: &str) -> Option<String> {
    let outside = &loops(code)[0];
    let once = outside.loads == 64 && outside.stores == 64;
    let fault = || {
        let Loop { loads, stores, .. } = outside;
        format!("{variant} reads {loads} and writes {stores} bytes of 64 of the state a lane")
    };
    (variant.shader() == "gated_delta_step" && !once).then(fault)
}

/// What counts of a GPU.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Vector units of 32 lanes.
    units: f64,
    /// GHz.
    clock: f64,
    /// GB/s.
    bandwidth: f64,
}

impl Target {
    /// The GPU that RADV calls `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (units, clock, bandwidth) = match name {
            "GFX1151" => (80.0, 2.9, 256.0),   // Radeon 8060S
            "NAVI31" => (192.0, 2.5, 960.0),   // RX 7900 XTX
            "NAVI21" => (160.0, 2.25, 512.0),  // RX 6900 XT
            "GFX1201" => (128.0, 2.97, 640.0), // RX 9070 XT
            _ => return None,
        };
        Some(Self { units, clock, bandwidth })
    }

    /// Cycles of all vector units in a nanosecond.
    pub(crate) fn cycles_a_ns(self) -> f64 {
        self.units * self.clock
    }

    /// And in the time that a byte takes from memory.
    pub(crate) fn cycles_a_byte(self) -> f64 {
        self.cycles_a_ns() / self.bandwidth
    }
}
