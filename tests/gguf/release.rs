//! Tensor data must not stay resident once it is on the device. Linux tells which pages are.

#![cfg(target_os = "linux")]

use std::{fs, path::Path};

use engine::{Engine, EngineOptions, Gguf, Result};

use crate::{fixture, scratch};

/// Resident bytes of the memory maps of `path`.
fn resident(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let path = path.to_str().unwrap();
    let mut of_path = false;
    let mut kib = 0;
    for line in maps.lines() {
        // A line of another map, or a field of this one, `Name: value`.
        if !line.split(' ').next().unwrap_or_default().ends_with(':') {
            of_path = line.ends_with(path);
        } else if of_path && let Some(rss) = line.strip_prefix("Rss:") {
            kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib * 1024
}

#[test]
fn released_data_are_not_resident_and_read_the_same() -> Result<()> {
    let path = scratch("release").join("model.gguf");
    fs::copy(fixture("tiny-llama.gguf"), &path).unwrap();
    let gguf = Gguf::open(&path)?;
    let before: Vec<_> = gguf.tensors().iter().map(|t| gguf.data(t).to_vec()).collect();
    let all = resident(&path);
    assert!(all > gguf.file_len() / 2, "{all} bytes of {} are resident", gguf.file_len());
    for tensor in gguf.tensors() {
        gguf.release(tensor);
    }
    let left = resident(&path);
    assert!(left < all / 4, "{left} bytes of {all} stay resident");
    for (tensor, before) in gguf.tensors().iter().zip(before) {
        assert!(gguf.data(tensor) == before, "data of {}", tensor.name);
    }
    Ok(())
}

#[test]
fn no_second_copy_is_resident_while_loading() -> Result<()> {
    let path = scratch("loading").join("model.gguf");
    fs::copy(fixture("tiny-llama.gguf"), &path).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    let mut most = 0;
    Engine::load(&path, &EngineOptions::default(), &mut |_, _| most = most.max(resident(&path)))?;
    assert!(most > 0, "the map was not found");
    // A few tensors are, and what the system maps around a page that is read.
    assert!(most < size / 2, "{most} bytes of {size} were resident");
    Ok(())
}
