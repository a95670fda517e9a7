//! Compiled pipelines on disk, so that the next start does not compile them again. One file for
//! each adapter and driver, in the user's cache directory. It is a cache: a file that is missing,
//! damaged or foreign means compiling, and one that cannot be written means compiling next time.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

use crate::{Error, Result, replace::replace};

/// Larger files are neither read nor written.
const MOST: usize = 64 << 20;
/// What every file begins with.
const MAGIC: [u8; 8] = *b"engine-1";
/// The magic, and a hash of what follows.
const HEADER: usize = 16;

/// The pipelines of a device, where its driver lets them be kept.
#[derive(Debug)]
pub(super) struct PipelineCache(Option<Open>);

#[derive(Debug)]
struct Open {
    cache: wgpu::PipelineCache,
    file: PathBuf,
}

/// The user's directory for what can be made again, by the XDG rules: `$XDG_CACHE_HOME/engine`,
/// else `~/.cache/engine`; none where neither is known.
pub fn user_cache() -> Option<PathBuf> {
    xdg_cache(|name| env::var_os(name).map(PathBuf::from))
}

fn xdg_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // Relative paths are to be ignored.
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("engine"))
}

impl PipelineCache {
    /// That of `device` in `directory`; an empty one where the file is of no use, none where there
    /// is no directory or the device has no such feature.
    pub(super) fn open(
        device: &wgpu::Device,
        adapter: &wgpu::AdapterInfo,
        directory: Option<&Path>,
    ) -> Self {
        let key = wgpu::util::pipeline_cache_key(adapter)
            .filter(|_| device.features().contains(wgpu::Features::PIPELINE_CACHE));
        let Some((directory, key)) = directory.zip(key) else { return Self(None) };
        // wgpu's key has no driver, and wgpu checks only that the data is of this one.
        let driver = hash(&(&adapter.driver, &adapter.driver_info));
        let file = directory.join(format!("{key}_{driver:016x}"));
        let data = match read(&file) {
            Ok(data) => Some(data),
            Err(e) => {
                tracing::debug!("no compiled pipelines from {}: {e}", file.display());
                None
            }
        };
        let open = |data| {
            let descriptor =
                wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data, fallback: true };
            // SAFETY: the data is what `get_data` gave for this adapter and driver, whole: the file
            // is the user's own, its hash is checked here and its header by wgpu.
            unsafe { device.create_pipeline_cache(&descriptor) }
        };
        let fault = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let mut cache = open(data.as_deref());
        if let Some(e) = pollster::block_on(fault.pop()) {
            tracing::debug!("no compiled pipelines from {}: {e}", file.display());
            cache = open(None);
        }
        Self(Some(Open { cache, file }))
    }

    pub(super) fn raw(&self) -> Option<&wgpu::PipelineCache> {
        self.0.as_ref().map(|open| &open.cache)
    }

    /// Writes what is compiled so far.
    pub(super) fn save(&self) {
        let Some(Open { cache, file }) = &self.0 else { return };
        let Some(data) = cache.get_data() else { return };
        if let Err(e) = write(file, &data) {
            tracing::debug!("compiled pipelines are not kept: {e}");
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What [`write`] wrote to `file`.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(file)?.len() > (HEADER + MOST) as u64 {
        return Err(io::Error::other("it is too large"));
    }
    let mut bytes = fs::read(file)?;
    let whole = bytes.len() >= HEADER
        && bytes[..8] == MAGIC
        && bytes[8..HEADER] == hash(&&bytes[HEADER..]).to_le_bytes();
    match whole {
        true => Ok(bytes.split_off(HEADER)),
        false => Err(io::Error::other("it is damaged, or none of this program's")),
    }
}

/// Writes `data` to `file`, so that a reader finds all or nothing.
fn write(file: &Path, data: &[u8]) -> Result<()> {
    let io = |error| Error::io(file, error);
    if data.len() > MOST {
        return Err(io(io::Error::other(format!("{} bytes are too many", data.len()))));
    }
    fs::create_dir_all(file.parent().unwrap_or(Path::new("."))).map_err(io)?;
    replace(file, &[&MAGIC[..], &hash(&data).to_le_bytes(), data].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{DeviceOptions, Gpu};
    use std::process;

    /// An empty directory of this test's own.
    fn directory(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("engine-{name}-{}", process::id()));
        _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn the_directory_follows_the_xdg_rules() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            xdg_cache(|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
        };
        assert_eq!(of(Some("/c"), Some("/home/a")), Some("/c/engine".into()));
        for none in [None, Some(""), Some("relative")] {
            assert_eq!(of(none, Some("/home/a")), Some("/home/a/.cache/engine".into()));
            assert_eq!(of(none, None), None);
        }
    }

    #[test]
    fn what_is_read_is_what_was_written_or_nothing() {
        let directory = directory("cache-file");
        let file = directory.join("some");
        assert!(read(&file).is_err());
        for data in [&b""[..], b"pipelines", b"others"] {
            write(&file, data).unwrap();
            assert_eq!(read(&file).unwrap(), data);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert!(read(&file).is_err(), "{cut} bytes");
            let mut damaged = whole.clone();
            damaged[cut] ^= 1;
            fs::write(&file, damaged).unwrap();
            assert!(read(&file).is_err(), "byte {cut}");
        }
        assert!(write(&file, &vec![0; MOST + 1]).is_err());
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "a file where the directory should be").unwrap();
        assert!(write(&file, b"x").is_err());
        fs::remove_file(directory).unwrap();
    }

    /// Whatever lies in the directory, a device opens and its kernels run.
    #[test]
    fn a_device_opens_with_any_cache() {
        use crate::ops::{
            bias,
            testing::{self, TestDevice},
        };
        let directory = directory("cache-device");
        let device = || {
            let cache = Some(directory.clone());
            Gpu::open(&DeviceOptions { cache, ..Default::default() }).unwrap()
        };
        let open = || {
            let gpu = device();
            let t = TestDevice { name: "pipelines on disk", gpu };
            let (x, b) = (t.upload(&[1.0; 64], 64), t.upload(&[1.0; 64], 64));
            t.run(|rec| bias::record(rec, &b, &x, 1));
            assert_eq!(t.read(&x), [2.0; 64]);
        };
        open();
        let Ok(mut files) = fs::read_dir(&directory) else {
            testing::skipped("the adapter keeps no pipelines");
            return;
        };
        let file = files.next().unwrap().unwrap().path();
        let data = read(&file).unwrap();
        // The driver takes what is there before it has compiled anything.
        let second = device();
        let taken = second.inner().pipeline_cache.raw().and_then(wgpu::PipelineCache::get_data);
        // It may put the same in another order.
        assert_eq!(taken.map(|taken| taken.len()), Some(data.len()));
        open();
        assert_eq!(read(&file).unwrap().len(), data.len(), "the second start adds nothing");
        // Cut by the driver, of another one, of none.
        for data in [&data[..data.len() / 2], &[&data[..20], &data[24..]].concat(), b"junk"] {
            write(&file, data).unwrap();
            open();
        }
        fs::write(&file, "junk").unwrap();
        open();
        fs::remove_dir_all(directory).unwrap();
    }
}
