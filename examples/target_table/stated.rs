//! The stored tables, one a target, and what a change must not make worse.

use crate::{
    figures::{Column, Figures},
    work,
};
use engine::shader::Variant;
use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

/// Kernels and their figures, in the order of `shaders/variants.txt`.
pub(crate) type Table = Vec<(Variant, Figures)>;

/// Where the table of `target` is kept.
pub(crate) fn path(target: &str) -> PathBuf {
    // Set by `cargo run`; without it, as from the repository's root.
    let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    PathBuf::from(root).join(format!("examples/target_table/{}.txt", target.to_lowercase()))
}

/// The table as text, for people and for [`parse`].
pub(crate) fn text(device: &str, table: &Table) -> String {
    let names: Vec<_> = table.iter().map(|(variant, _)| variant.to_string()).collect();
    let widest = names.iter().map(String::len).max().unwrap_or(0);
    let mut text =
        format!("# {device}\n# {:widest$}{}\n", "kernel", Figures::titles(), widest = widest - 1);
    for (name, (_, figures)) in names.iter().zip(table) {
        let _ = writeln!(text, "{name:widest$} |{figures}");
    }
    text
}

/// Reads what [`text`] wrote.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<&str, Figures>, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let row = line
                .split_once('|')
                .and_then(|(name, figures)| Some((name.trim(), Figures::parse(figures)?)));
            row.ok_or_else(|| format!("cannot read `{line}`"))
        })
        .collect()
}

/// What is wrong with `table`, a sentence each: by itself, and against the `stated` one.
pub(crate) fn faults(
    table: &Table,
    target: &str,
    mut stated: Option<BTreeMap<&str, Figures>>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (variant, now) in table {
        let name = variant.to_string();
        for (column, what) in [(Column::Spills, "spills"), (Column::Scratch, "uses scratch")] {
            if now.get(column) > 0 {
                faults.push(format!("{name} {what}: {}", now.get(column)));
            }
        }
        let Some(stated) = &mut stated else { continue };
        let Some(before) = stated.remove(name.as_str()) else {
            faults.push(format!("{name} is not stated"));
            continue;
        };
        let (waves, floor) = (now.get(Column::Waves), before.get(Column::Waves));
        if waves < floor {
            faults.push(format!("{name}: {waves} waves a SIMD, {floor} are stated"));
        }
        let (bound, before_bound) = (now.get(Column::Bound), before.get(Column::Bound));
        // A small kernel has a time, and is excused where that is next to none.
        let small = (1..work::SMALL).contains(&now.get(Column::Time));
        if bound > work::most(variant, target, before_bound) && !small {
            faults.push(format!("{name} takes {bound} % of the time of its bytes"));
        }
        let kept = [
            (Column::Load16, "16-byte loads"),
            (Column::Dot, "integer dot products"),
            (Column::Wmma, "matrix products"),
        ];
        for (column, what) in kept {
            if now.get(column) == 0 && before.get(column) > 0 {
                faults.push(format!("{name} has lost its {what}"));
            }
        }
    }
    for name in stated.into_iter().flat_map(BTreeMap::into_keys) {
        faults.push(format!("{name} is stated but not in shaders/variants.txt"));
    }
    faults
}
