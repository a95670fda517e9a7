//! Tensor data must not stay resident once it is on the device. Linux tells which pages are.

#![cfg(target_os = "linux")]

use std::{
    fs::{self, File},
    path::Path,
};

use engine::{Engine, EngineOptions, Gguf, Result};

use crate::gguf::{fixture, scratch};

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
        gguf.release(tensor, 0..tensor.size, false);
    }
    let left = resident(&path);
    assert!(left < all / 4, "{left} bytes of {all} stay resident");
    for (tensor, before) in gguf.tensors().iter().zip(before) {
        assert!(gguf.data(tensor) == before, "data of {}", tensor.name);
    }
    Ok(())
}

/// Bytes of `path` that the system keeps in memory, whoever may want them.
fn cached(path: &Path) -> u64 {
    const PAGE: usize = 4096;
    let file = File::open(path).unwrap();
    // SAFETY: the file is this test's own and stays as it is.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let mut pages = vec![0_u8; map.len().div_ceil(PAGE)];
    // SAFETY: the range is that of the map, and there is a byte for each of its pages.
    let status =
        unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    assert_eq!(status, 0);
    pages.iter().filter(|page| **page & 1 == 1).count() as u64 * PAGE as u64
}

#[test]
fn no_second_copy_stays_while_loading() -> Result<()> {
    let path = scratch("loading").join("model.gguf");
    fs::copy(fixture("tiny-llama.gguf"), &path).unwrap();
    // Pages that are not written yet stay in memory whatever they are good for.
    File::open(&path).unwrap().sync_all().unwrap();
    let size = fs::metadata(&path).unwrap().len();
    assert_eq!(cached(&path).min(size), size);
    let mut most = 0;
    let options = EngineOptions::default();
    let engine = Engine::load(&path, &options, &mut |_, _| most = most.max(resident(&path)))?;
    assert!(most > 0, "the map was not found");
    // A few tensors are, and what the system maps around a page that is read.
    assert!(most < size / 2, "{most} bytes of {size} were resident");
    let (left, device) = (cached(&path), engine.device().0);
    match device.kind.shares_memory() {
        // The header and a page between two tensors.
        true => assert!(left < size / 2, "{left} bytes of {size} are cached"),
        // The next start is faster.
        false => assert!(left >= size, "{left} bytes of {size} are cached"),
    }
    Ok(())
}
