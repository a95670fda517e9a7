//! What else the machine did during a measurement.

use super::clients::Clients;
use serde::Serialize;
use std::{fs, path::Path, process, time::Duration};

/// More of the processors than this taken by others, and a row is marked.
const CPU: f64 = 0.15;
/// Fewer clock ticks of all processors say nothing of a run.
const TICKS: u64 = 40;
/// A GPU busier than this with others' work, likewise.
const GPU: f64 = 0.05;

/// How busy others were; none where the system does not tell, which is not the same as idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Share of all processors' time that other processes took.
    pub other_cpu: Option<f64>,
    /// Share of the GPU's time that others took: before, and during, as far as their counters can be
    /// read.
    pub other_gpu: Option<f64>,
}

impl Load {
    /// Of all runs together, or of the worst of them as far as a single one tells.
    pub(super) fn of(runs: &[Passed]) -> Self {
        let all = runs.iter().fold(Passed::default(), |all, run| all.and(*run)).load();
        runs.iter().fold(all, |worst, run| worst.worse(run.told()))
    }

    /// The worse of both.
    pub(super) fn worse(self, other: Self) -> Self {
        let most = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        Self {
            other_cpu: most(self.other_cpu, other.other_cpu),
            other_gpu: most(self.other_gpu, other.other_gpu),
        }
    }

    /// What disturbed a row, in words.
    pub fn disturbance(&self) -> Option<String> {
        let over = |share: Option<f64>, limit| share.filter(|share| *share > limit);
        let parts = [("CPU", over(self.other_cpu, CPU)), ("GPU", over(self.other_gpu, GPU))];
        let parts: Vec<_> = parts
            .into_iter()
            .filter_map(|(what, share)| Some(format!("{:.0} % of the {what}", share? * 100.0)))
            .collect();
        (!parts.is_empty()).then(|| format!("disturbed: others took {}", parts.join(" and ")))
    }
}

/// A measurement that is going on.
#[derive(Debug)]
pub(super) struct Watch {
    start: Option<Ticks>,
    gpu: Option<f64>,
    clients: Clients,
}

impl Watch {
    /// Starts; this process must have nothing running on the GPU.
    pub(super) fn start() -> Self {
        let gpu = gpu_busy();
        let clients = Clients::read(Path::new("/proc"), process::id());
        Self { gpu, clients, start: Ticks::now() }
    }

    pub(super) fn finish(self) -> Passed {
        let ticks = self.start.zip(Ticks::now()).map(|(start, end)| end.since(start));
        let clients = Clients::read(Path::new("/proc"), process::id());
        let during = clients.since(&self.clients);
        Passed { ticks, gpu: self.gpu.into_iter().chain(during).reduce(f64::max) }
    }
}

/// What passed during measurements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// Clock ticks of all processors, and of others; none where the system does not tell.
    ticks: Option<[u64; 2]>,
    gpu: Option<f64>,
}

impl Passed {
    /// This and `other` together.
    fn and(self, other: Self) -> Self {
        let ticks = match (self.ticks, other.ticks) {
            (Some([all, others]), Some([more, of_others])) => {
                Some([all + more, others + of_others])
            }
            (a, b) => a.or(b),
        };
        Self { ticks, gpu: self.gpu.into_iter().chain(other.gpu).reduce(f64::max) }
    }

    /// How busy others were.
    pub(super) fn load(self) -> Load {
        let told = self.ticks.filter(|[all, _]| *all > 0);
        let share = |[all, others]: [u64; 2]| (others as f64 / all as f64).min(1.0);
        Load { other_cpu: told.map(share), other_gpu: self.gpu }
    }

    /// How busy others were, for all that can be told of a single run.
    fn told(self) -> Load {
        let ticks = self.ticks.filter(|[all, _]| *all >= TICKS);
        Self { ticks, ..self }.load()
    }

    /// Whether others were in the way during a single run.
    pub(super) fn is_disturbed(self) -> bool {
        self.told().disturbance().is_some()
    }
}

/// Clock ticks since boot, of all processors together.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// From `/proc/stat` and `/proc/self/stat`.
    fn parse(machine: &str, own: &str) -> Option<Self> {
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guests' time is in the first two.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.get(3..5)?.iter().sum();
        // The name, in brackets, may hold spaces: the third field follows the last one.
        let mut own = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut next = || own.next()?.parse::<u64>().ok();
        Some(Self { all, busy: all - idle, own: next()? + next()? })
    }

    /// All ticks since `start`, and those that others took.
    fn since(self, start: Self) -> [u64; 2] {
        let passed = |part: fn(&Self) -> u64| part(&self).saturating_sub(part(&start));
        [passed(|t| t.all), passed(|t| t.busy).saturating_sub(passed(|t| t.own))]
    }
}

/// Least share of the busiest GPU in use over some moments, where amdgpu tells.
fn gpu_busy() -> Option<f64> {
    let cards = fs::read_dir("/sys/class/drm").ok()?.flatten();
    let files = cards.map(|card| card.path().join("device/gpu_busy_percent"));
    let files: Vec<_> = files.filter(|file| file.is_file()).collect();
    let busy = || files.iter().filter_map(|f| fs::read_to_string(f).ok()?.trim().parse().ok());
    let mut least: Option<f64> = None;
    for _ in 0..if files.is_empty() { 0 } else { 5 } {
        std::thread::sleep(Duration::from_millis(20));
        let now = busy().fold(0.0_f64, f64::max);
        least = Some(least.map_or(now, |least| least.min(now)));
    }
    least.map(|percent| percent / 100.0)
}

#[cfg(test)]
impl Passed {
    pub(super) fn of_ticks(all: u64, others: u64) -> Self {
        Self { ticks: Some([all, others]), gpu: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELF: &str = "7 (a) b) S 1 1 1 0 -1 0 9 9 9 9 UTIME STIME 0 0 20 0";

    fn at(user: u64, idle: u64, own: u64) -> Ticks {
        let machine = format!("cpu  {user} 0 10 {idle} 5 0 0 1 99 0\ncpu0 1 1 1 1\n");
        let own = SELF.replace("UTIME", &own.to_string()).replace("STIME", "2");
        Ticks::parse(&machine, &own).unwrap()
    }

    #[test]
    fn others_are_all_that_is_busy_but_this_process() {
        let (start, end) = (at(100, 1000, 50), at(180, 1020, 100));
        // 80 busy ticks of 100, 50 of them ours.
        assert_eq!(end.since(start), [100, 30]);
        assert_eq!(start.since(start), [0, 0]);
        assert!(Ticks::parse("cpu  1 2", SELF).is_none());
        assert!(Ticks::parse("", "").is_none());
    }

    #[test]
    fn moments_are_too_short_to_be_disturbed_alone_but_count_together() {
        let moment = Passed::of_ticks(30, 15);
        assert!(!moment.is_disturbed());
        let both = Load::of(&[moment, moment, Passed::default()]);
        assert!(both.disturbance().is_some());
        assert_eq!(both.other_cpu, Some(0.5));
        assert_eq!(Load::of(&[]), Load::default());
        assert_eq!(Passed::of_ticks(0, 0).load(), Load::default());
    }

    /// Known fault: among quiet runs a disturbed one went unmentioned.
    #[test]
    fn the_worst_of_several_runs_counts() {
        let quiet = Passed::of_ticks(1000, 10);
        let moment = Passed::of_ticks(10, 10);
        let load = Load::of(&[quiet, quiet, Passed::of_ticks(1000, 400), moment, quiet]);
        assert_eq!(load.other_cpu, Some(0.4));
        assert!(load.disturbance().is_some());
        let gpu = Passed { ticks: None, gpu: Some(0.5) };
        assert_eq!(Load::of(&[quiet, gpu, quiet]).other_gpu, Some(0.5));
    }

    #[test]
    fn a_busy_machine_is_named_and_an_unknown_one_is_not() {
        let load = |cpu, gpu| Load { other_cpu: cpu, other_gpu: gpu };
        assert_eq!(load(None, None).disturbance(), None);
        assert_eq!(load(Some(0.14), Some(0.04)).disturbance(), None);
        let both = load(Some(0.2), None).worse(load(Some(0.1), Some(0.5)));
        let text = both.disturbance().unwrap();
        assert_eq!(text, "disturbed: others took 20 % of the CPU and 50 % of the GPU");
    }
}
