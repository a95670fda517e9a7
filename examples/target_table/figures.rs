//! What is known of a compiled kernel: the columns of the table.

use crate::{
    driver::Compiled,
    work::{self, Target, Work},
};
use engine::shader::Variant;
use std::fmt;

macro_rules! columns {
    ($($(#[doc = $doc:literal])+ $column:ident = $title:literal,)+) => {
        /// A column of the table.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Column { $($(#[doc = $doc])+ $column,)+ }

        /// All of them in order, with their titles.
        const COLUMNS: &[(Column, &str)] = &[$((Column::$column, $title),)+];
    };
}

columns! {
    /// Vector registers, as allocated.
    Vgprs = "vgprs",
    /// Scalar registers in use (the allocation is fixed).
    Sgprs = "sgprs",
    /// Registers that went to memory.
    Spills = "spills",
    /// Bytes of private memory an invocation.
    Scratch = "scratch",
    /// Bytes of workgroup memory, as allocated.
    Lds = "lds",
    /// Lanes of a wave.
    Lanes = "lanes",
    /// Waves a SIMD holds: occupancy.
    Waves = "waves",
    /// Instructions of the vector unit.
    Valu = "valu",
    /// Loads from buffers of 16 bytes a lane.
    Load16 = "ld16",
    /// Of 8 or 12 bytes.
    Load8 = "ld8",
    /// Of 4 bytes.
    Load4 = "ld4",
    /// Of fewer.
    Load2 = "ld2",
    /// Scalar loads: what all lanes of a wave share.
    Scalar = "scalar",
    /// Stores to buffers of 16 bytes a lane.
    Store16 = "st16",
    /// Of fewer.
    Store = "st",
    /// Atomic operations on buffers.
    Atomics = "atomic",
    /// Reads, writes and atomics of workgroup memory.
    LdsOps = "ds",
    /// Integer dot products.
    Dot = "dot",
    /// Cooperative matrix products.
    Wmma = "wmma",
    /// The compiler's estimate of cycles from start to end; it takes 8 rounds for each loop.
    Latency = "latency",
    /// Its estimate of cycles a SIMD is busy for each 64 lanes, with the same rounds and every other of
    /// the branches that a wave takes as one.
    Busy = "busy",
    /// Of a kernel of the decode path: time of the vector units in percent of that which its bytes take
    /// from memory ([`work`]). Less than 100: memory is the bound.
    Bound = "bound",
    /// Of a small one: that time of a whole dispatch, in nanoseconds of all vector units together.
    Time = "ns",
    /// Of a tiled product: multiplications in percent of what the vector units, or the matrix units
    /// where it uses them, could do in its time.
    Peak = "peak",
}

/// One row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Figures([u64; COLUMNS.len()]);

impl Figures {
    /// Counts and copies from what the driver says.
    pub(crate) fn of(kernel: &Compiled, variant: &Variant, target: &str) -> Self {
        let mut figures = Self([0; COLUMNS.len()]);
        figures.0[Column::Lanes as usize] = kernel.lanes.into();
        for (name, value) in &kernel.statistics {
            let column = match name.as_str() {
                "VGPRs" => Column::Vgprs,
                "Pre-Sched SGPRs" => Column::Sgprs,
                "Spilled SGPRs" | "Spilled VGPRs" => Column::Spills,
                "Scratch size" => Column::Scratch,
                "LDS size" => Column::Lds,
                "Subgroups per SIMD" => Column::Waves,
                "VALU" => Column::Valu,
                "Latency" => Column::Latency,
                "Inverse Throughput" => Column::Busy,
                _ => continue,
            };
            figures.0[column as usize] += value;
        }
        for column in kernel.code.lines().filter_map(|line| counted(opcode(line)?)) {
            figures.0[column as usize] += 1;
        }
        let mut set = |column: Column, figure: f64| {
            figures.0[column as usize] = figure.round() as u64;
        };
        let target = Target::named(target);
        match (work::main_loop(variant, &kernel.code), target) {
            (Some((Work::Stream(bytes), cycles)), Some(target)) => {
                set(Column::Bound, 100.0 * cycles / (32.0 * bytes * target.cycles_a_byte()));
            }
            (Some((Work::Multiply(products), cycles)), _) => {
                set(Column::Peak, 100.0 * products / cycles);
            }
            _ => {}
        }
        if let (Some((bytes, cycles)), Some(target)) =
            (work::dispatch(variant, &kernel.code), target)
        {
            set(Column::Bound, 100.0 * cycles / (bytes * target.cycles_a_byte()));
            set(Column::Time, (cycles / target.cycles_a_ns()).ceil());
        }
        figures
    }

    /// The figure in `column`.
    pub(crate) fn get(&self, column: Column) -> u64 {
        self.0[column as usize]
    }

    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all: Option<Vec<_>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        Some(Self(all?.try_into().ok()?))
    }

    /// The titles, as wide as the figures.
    pub(crate) fn titles() -> String {
        COLUMNS.iter().map(|(_, title)| format!(" {title:>5}")).collect()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = COLUMNS.iter().map(|(_, title)| title.len().max(5));
        self.0.iter().zip(widths).try_for_each(|(figure, width)| write!(f, " {figure:>width$}"))
    }
}

/// The operation in a line of the compiler's program, `results = operation operands`.
pub(crate) fn opcode(line: &str) -> Option<&str> {
    let line = line.split_once(" = ").map_or(line, |(_, right)| right);
    line.split_whitespace().next()
}

fn counted(opcode: &str) -> Option<Column> {
    let (unit, what) = opcode.split_once('_')?;
    Some(match unit {
        "buffer" | "global" => {
            let (what, size) = what.split_once('_')?;
            let wide = size.ends_with("x4");
            match what {
                "load" if wide => Column::Load16,
                "load" if size.contains("dwordx") => Column::Load8,
                "load" if size == "dword" => Column::Load4,
                "load" => Column::Load2,
                "store" if wide => Column::Store16,
                "store" => Column::Store,
                _ => Column::Atomics,
            }
        }
        "ds" => Column::LdsOps,
        "s" if what.starts_with("load") || what.starts_with("buffer_load") => Column::Scalar,
        "v" if what.starts_with("dot4") => Column::Dot,
        "v" if what.starts_with("wmma") => Column::Wmma,
        _ => return None,
    })
}
