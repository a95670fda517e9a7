//! Collects every `shaders/**/*.wgsl` file into a table of (name, source), so that adding a
//! shader is adding a file. Names are paths below `shaders/` without the extension.

use std::{env, fs, io::Write, path::Path};

fn main() {
    println!("cargo:rerun-if-changed=shaders");
    let mut files = Vec::new();
    collect(Path::new("shaders"), &mut files);
    files.sort();
    let out = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("shaders.rs");
    let mut table = fs::File::create(out).expect("OUT_DIR is writable");
    writeln!(table, "&[").expect("write");
    for path in files {
        let name = path.trim_start_matches("shaders/").trim_end_matches(".wgsl");
        // Resolved when the crate is compiled, so that a checkout may be moved.
        let file = format!("/{path}");
        let text = format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {file:?}))");
        writeln!(table, "({name:?}, {text}),").expect("write");
    }
    writeln!(table, "]").expect("write");
}

fn collect(dir: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("shaders/ is readable") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "wgsl") {
            files.push(path.to_str().expect("shader paths are UTF-8").to_owned());
        }
    }
}
