//! Compiles every variant of `shaders/variants.txt` for AMD GPUs that need not be there, and
//! prints what each costs: registers, occupancy, memory instructions, estimated cycles.
//!
//! ```text
//! cargo run --example target_table -- GFX1151    # print the table of one GPU
//! cargo run --example target_table -- --check    # compare all with the stored tables
//! cargo run --example target_table -- --write    # store them
//! cargo run --example target_table -- GFX1151 --code "mat_vec LANES=32 N=1 format=q4_k"
//! ```
//!
//! The compiler is the one that AMD GPUs have on Linux: ACO, in Mesa's RADV driver. With
//! `RADV_FORCE_FAMILY` that opens a device which compiles and cannot run; the Mesa must be of
//! version 25 (Debian 12: `mesa-vulkan-drivers` of bookworm-backports), as 26 has it no more.
//! wgpu cannot open it, because wgpu submits work while it opens a device, so [`driver`] compiles
//! with wgpu's options itself: a kernel's figures are those of the code that runs.
//!
//! Every kernel of the decode path is to be bound by memory: its vector units take less time (`bound`,
//! in percent) than memory takes for its bytes. That is throughput over all workgroups, not how long a
//! lone one waits: of kernels that stream, of a round of their main loop ([`work`]); of the small ones, of
//! a whole dispatch at the shapes of the two models that matter ([`moved`]). The compiler's own estimate,
//! `busy`, takes 8 rounds for each loop and one in two of the branches that a wave takes as one; here
//! loops have the rounds of those shapes, and all branches are taken.
//!
//! The stored tables lie beside this file. `--check` fails when a kernel spills registers or uses scratch
//! memory, when one of the decode path is bound by arithmetic and not by memory (on the 8060S without
//! exception but those that [`work::most`] names; a small one is excused where a dispatch of it takes all
//! vector units less than [`work::SMALL`] ns), when one is neither of that path nor set aside
//! ([`work::unstated`]), when a step of the delta rule does not read and write its state once, and when
//! one has fewer waves a SIMD than stated or lost its 16-byte loads, integer dot products or matrix
//! products; other figures may change freely.

mod driver;
mod figures;
mod moved;
mod stated;
mod work;

use clap::Parser;
use driver::Compiler;
use engine::shader;
use figures::Figures;
use std::{
    path::Path,
    process::{Command, ExitCode},
};

/// What the compiler of AMD GPUs makes of each kernel.
#[derive(Parser)]
struct Arguments {
    /// GPUs as RADV names them: the Radeon 8060S, and RDNA3, RDNA2 and RDNA4 on desktops.
    #[arg(default_values = ["GFX1151", "NAVI31", "NAVI21", "GFX1201"])]
    targets: Vec<String>,
    /// Compare with the stored tables and print only what is worse.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Store the tables.
    #[arg(long)]
    write: bool,
    /// Succeed with a message where the driver is missing.
    #[arg(long)]
    if_available: bool,
    /// Print the compiler's program for the kernel of this name.
    #[arg(long, value_name = "VARIANT", conflicts_with_all = ["check", "write"])]
    code: Option<String>,
}

/// Chooses RADV's device; set, it says that this process compiles for it.
const TARGET: &str = "RADV_FORCE_FAMILY";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match std::env::var(TARGET) {
        Ok(target) => compile_all(&arguments, &target),
        Err(_) => each_target(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Missing(what)) if arguments.if_available => {
            println!("skipped: {what}");
            ExitCode::SUCCESS
        }
        Err(Failure::Missing(what) | Failure::Fault(what)) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
        Err(Failure::Told) => ExitCode::FAILURE,
    }
}

enum Failure {
    /// There is no such compiler here.
    Missing(String),
    Fault(String),
    /// Another process has said it.
    Told,
}

/// Runs this program once a target, all at once: drivers read the environment, which a process has
/// only one of.
fn each_target(arguments: &Arguments) -> Result<(), Failure> {
    let manifest = driver::manifest().ok_or_else(|| {
        Failure::Missing("AMD's driver is not installed (Debian: mesa-vulkan-drivers)".into())
    })?;
    std::thread::scope(|scope| {
        let manifest = &manifest;
        let start = |target| scope.spawn(move || one_target(target, manifest));
        let running: Vec<_> = arguments.targets.iter().map(String::as_str).map(start).collect();
        let died = |_| Failure::Fault("a thread has died".into());
        let results: Vec<_> =
            running.into_iter().map(|thread| thread.join().map_err(died).flatten()).collect();
        results.into_iter().collect()
    })
}

/// Runs this program for one target.
fn one_target(target: &str, manifest: &Path) -> Result<(), Failure> {
    let fault = |e: std::io::Error| Failure::Fault(format!("cannot run myself: {e}"));
    let output = Command::new(std::env::current_exe().map_err(fault)?)
        .args(std::env::args_os().skip(1))
        .env("VK_DRIVER_FILES", manifest)
        .env(TARGET, target)
        .output()
        .map_err(fault)?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    // Mesa's LLVM knows fewer GPUs than its ACO and says so once a kernel; the rest is of a
    // device that is not there.
    let noise = ["is not a recognized processor", "ac_compute_device_uuid", "not a conformant"];
    let said = String::from_utf8_lossy(&output.stderr);
    for line in said.lines().filter(|line| !noise.iter().any(|n| line.contains(n))) {
        eprintln!("{line}");
    }
    match output.status.success() {
        _ if said.contains("Unknown family") => {
            Err(Failure::Missing(format!("this Mesa knows no {target}")))
        }
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

fn compile_all(arguments: &Arguments, target: &str) -> Result<(), Failure> {
    let compiler = Compiler::open(target).map_err(Failure::Missing)?;
    let mut table = stated::Table::new();
    let mut faults = Vec::new();
    for variant in shader::listed() {
        if arguments.code.as_ref().is_some_and(|wanted| *wanted != variant.to_string()) {
            continue;
        }
        let shader = shader::compile(variant).map_err(|e| Failure::Fault(e.to_string()))?;
        // RDNA2 has no cooperative matrices, and the driver ends the process over them; for RDNA4 Mesa
        // 25.0 compiles what it does not offer yet.
        if shader.needs.matrices && target == "NAVI21" {
            continue;
        }
        let kernel =
            compiler.compile(&shader).map_err(|e| Failure::Fault(format!("{variant}: {e}")))?;
        if arguments.code.is_some() {
            println!("{}", kernel.code);
        }
        faults.extend(work::unstated(variant, &kernel.code));
        faults.extend(work::state_fault(variant, &kernel.code));
        table.push((variant.clone(), Figures::of(&kernel, variant, target)));
    }
    let path = stated::path(target);
    let text = stated::text(&compiler.name, &table);
    let fault = |e: std::io::Error| Failure::Fault(format!("{}: {e}", path.display()));
    faults.extend(if arguments.check {
        let stored = std::fs::read_to_string(&path).map_err(fault)?;
        let stored = stated::parse(&stored)
            .map_err(|e| Failure::Fault(format!("{}: {e}", path.display())))?;
        stated::faults(&table, target, Some(stored))
    } else {
        if arguments.write {
            std::fs::write(&path, &text).map_err(fault)?;
        } else {
            print!("{text}");
        }
        stated::faults(&table, target, None)
    });
    if faults.is_empty() {
        println!("{target}: {} kernels, none spills", table.len());
        return Ok(());
    }
    Err(Failure::Fault(format!(
        "{}\n{target}: if that is meant, state it: cargo run --example target_table -- --write {target}",
        faults.iter().map(|fault| format!("{target}: {fault}")).collect::<Vec<_>>().join("\n"),
    )))
}
