//! What other processes take of a GPU, by the counters that Linux keeps of its clients (`fdinfo`).
//! This process's own work does not count, so that others are seen while it keeps the GPU busy.

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

/// Nanoseconds that every client of other processes has had of every engine so far.
#[derive(Debug)]
pub(super) struct Clients {
    at: Instant,
    /// By device and engine, then by client.
    engines: BTreeMap<[String; 2], BTreeMap<String, u64>>,
}

impl Clients {
    /// As of now, in `/proc` at `proc`, without the process `own`.
    pub(super) fn read(proc: &Path, own: u32) -> Self {
        let mut clients = Self { at: Instant::now(), engines: BTreeMap::new() };
        for process in fs::read_dir(proc).into_iter().flatten().flatten() {
            let is_other = |id: u32| id != own;
            if process.file_name().to_str().and_then(|id| id.parse().ok()).is_some_and(is_other) {
                // Of other users' processes there is nothing to read.
                for file in fs::read_dir(process.path().join("fdinfo")).into_iter().flatten() {
                    if let Ok(text) = file.and_then(|file| fs::read_to_string(file.path())) {
                        clients.add(&text);
                    }
                }
            }
        }
        clients
    }

    /// Adds what an `fdinfo` file says, if it is a GPU's; duplicates of a file say the same.
    fn add(&mut self, text: &str) {
        let fields: Vec<_> = text.lines().filter_map(|line| line.split_once(':')).collect();
        let field = |name| fields.iter().find(|(key, _)| *key == name).map(|(_, v)| v.trim());
        let Some(client) = field("drm-client-id") else { return };
        let device = field("drm-pdev").unwrap_or_default();
        for (key, value) in &fields {
            let time = value.trim().strip_suffix(" ns").and_then(|time| time.parse().ok());
            if let Some((engine, time)) = key.strip_prefix("drm-engine-").zip(time) {
                let engine = self.engines.entry([device.into(), engine.into()]).or_default();
                engine.insert(client.into(), time);
            }
        }
    }

    /// Share of the busiest engine's time since `start`; none where no client was to be seen.
    pub(super) fn since(&self, start: &Self) -> Option<f64> {
        let passed = self.at.duration_since(start.at).as_nanos().max(1) as f64;
        let busy = self.engines.iter().map(|(engine, clients)| {
            let before = start.engines.get(engine);
            let before = |client| before.and_then(|b| b.get(client)).copied().unwrap_or(0);
            clients.iter().map(|(client, time)| time.saturating_sub(before(client))).sum::<u64>()
        });
        busy.max().map(|busy| (busy as f64 / passed).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{path::PathBuf, time::Duration};

    /// A `/proc` with files of (process, file, client, nanoseconds).
    fn tree(name: &str, files: &[(u32, u32, u32, u64)]) -> PathBuf {
        let proc = std::env::temp_dir().join(format!("engine-{}-{name}", std::process::id()));
        for (process, file, client, time) in files {
            let dir = proc.join(process.to_string()).join("fdinfo");
            fs::create_dir_all(&dir).unwrap();
            let text = format!(
                "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:03:00.0\n\
                 drm-engine-capacity-gfx:\t2\ndrm-engine-gfx:\t{time} ns\ndrm-engine-dec:\t7 ns\n"
            );
            fs::write(dir.join(file.to_string()), text).unwrap();
            fs::write(dir.join("0"), "pos:\t0\nflags:\t02\n").unwrap();
        }
        proc
    }

    /// The clients in such a tree, so long after `start`.
    fn clients(name: &str, files: &[(u32, u32, u32, u64)], start: Instant, ms: u64) -> Clients {
        let proc = tree(name, files);
        let clients = Clients::read(&proc, 1);
        fs::remove_dir_all(proc).unwrap();
        Clients { at: start + Duration::from_millis(ms), ..clients }
    }

    #[test]
    fn others_are_seen_beside_this_process_and_each_client_once() {
        let start = Instant::now();
        let before = clients("before", &[(1, 3, 10, 0), (2, 3, 20, 5_000_000)], start, 0);
        let files = [
            // This process works all the time.
            (1, 3, 10, 100_000_000),
            // Two files of one client that was there before, and one that has come.
            (2, 3, 20, 15_000_000),
            (2, 4, 20, 15_000_000),
            (3, 3, 30, 20_000_000),
        ];
        let after = clients("after", &files, start, 100);
        assert!((after.since(&before).unwrap() - 0.3).abs() < 1e-9);
        assert_eq!(before.since(&before), Some(0.0));
    }

    #[test]
    fn without_clients_nothing_is_known() {
        let start = Instant::now();
        let alone = clients("alone", &[(1, 3, 10, 5)], start, 0);
        assert_eq!(alone.since(&alone), None);
    }
}
