//! Plans against what engines allocate and what the system sees of the process.

use crate::common::{devices::as_it_is, edited::Temporary, expected::fixtures, zeros};
use engine::{
    Engine, EngineOptions, Gguf, demo,
    gpu::{DeviceOptions, MemoryReport, Restrictions},
    kv::{KvHost, KvType},
    plan::{Bandwidth, Checkpoints, Choices, Context, HeapSize, Heaps, MemoryLimits, Model, Plan},
};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    ops::ControlFlow,
    path::Path,
    process::{Child, Command, Stdio},
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Where a model goes.
#[derive(Clone, Copy, Debug)]
struct Where {
    kv_host: KvHost,
    experts_host: u32,
    /// Bytes of the device.
    device: u64,
}

const DEVICE: Where = Where { kv_host: KvHost::Off, experts_host: 0, device: 16 * GIB };
const HOST: Where = Where { kv_host: KvHost::On, ..DEVICE };
const EXPERTS: Where = Where { experts_host: 2, ..DEVICE };
const BOTH: Where = Where { experts_host: 2, ..HOST };

impl Where {
    fn options(self, device: DeviceOptions, context: u32) -> EngineOptions {
        let Self { kv_host, experts_host, device: bytes } = self;
        EngineOptions {
            device,
            kv_host,
            experts_host,
            context: Some(context),
            memory: MemoryLimits { device: Some(bytes), host: Some(32 * GIB), reserve: None },
            fit: true,
            checkpoints: Checkpoints { memory: u64::MAX, count: 1 },
            ..EngineOptions::default()
        }
    }

    fn plan(self, gguf: &Gguf, engine: &Engine) -> Plan {
        let choices = Choices {
            context: Context::Tokens(engine.context()),
            sequences: 1,
            cache_k: KvType::F16,
            cache_v: KvType::F16,
            kv_host: self.kv_host,
            kv_staging: 32 * MIB,
            chunk: 512,
            experts_host: self.experts_host,
            ngram: Default::default(),
            checkpoints: Checkpoints { memory: u64::MAX, count: 1 },
            bandwidth: Bandwidth::default(),
        };
        let device = HeapSize::device(self.device, "");
        let heaps = Heaps::apart(device, HeapSize::host(32 * GIB, ""));
        let model = Model::of_file(gguf, "model").unwrap();
        Plan::new(&model, &choices, engine.gpu().caps(), &heaps).unwrap()
    }
}

/// Loads `gguf`, fills the context, takes a checkpoint and compares with the plan by kind and heap;
/// returns what was planned for the device and what there is.
fn compare(gguf: &Gguf, device: DeviceOptions, place: Where, context: u32) -> (u64, MemoryReport) {
    let options = place.options(device, context);
    let mut engine = Engine::from_gguf(gguf, &options, &mut |_, _| ()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    engine.synthetic_history(&mut seq, context - 9).unwrap();
    if place.kv_host != KvHost::Off {
        // That has staging.
        engine.prefill(&mut seq, &[1; 9], &mut |_| ControlFlow::Continue(())).unwrap();
    }
    let _checkpoint = engine.checkpoint(&seq).unwrap();
    let MemoryReport { device: d, host: h } = engine.memory();
    let plan = place.plan(gguf, &engine);
    let b = plan.bytes;
    assert_eq!((b.weights_device, b.weights_host), (d.weights, h.weights), "{place:?}");
    assert_eq!((b.kv, b.index_raw), (d.kv + h.kv, d.index_raw + h.index_raw), "{place:?}");
    assert_eq!(b.index_pooled, d.index_pooled, "{place:?}");
    assert_eq!(b.recurrent + b.checkpoints, d.state + h.state, "{place:?}");
    assert_eq!(plan.heaps[1].planned, h.total, "{place:?}");
    let (planned, there) = (plan.heaps[0].planned as f64, d.total as f64);
    assert!((planned / there - 1.0).abs() < 0.02, "{place:?}: {planned} planned, {there} there");
    (plan.heaps[0].planned, engine.memory())
}

/// Device, host, experts on the host, and a device with room for half of the cache.
fn compare_everywhere(gguf: &Gguf, context: u32) {
    let (planned, all) = compare(gguf, as_it_is(), DEVICE, context);
    if compare_host(gguf, context) {
        compare(gguf, as_it_is(), EXPERTS, context);
        let used = planned - all.device.kv / 2 + 40 * MIB;
        let device = used + HeapSize::device(used, "").reserve;
        let mixed = Where { kv_host: KvHost::Auto, device, ..DEVICE };
        let memory = compare(gguf, as_it_is(), mixed, context).1;
        assert!(memory.device.kv > 0 && memory.host.kv > 0, "{memory:?}");
    }
}

/// False where the device reads no host memory.
fn compare_host(gguf: &Gguf, context: u32) -> bool {
    let options = HOST.options(as_it_is(), context);
    let there = Engine::from_gguf(gguf, &options, &mut |_, _| ());
    match there {
        Ok(engine) => drop(engine),
        Err(e) => {
            assert!(e.to_string().contains("host memory"), "{e}");
            return false;
        }
    }
    compare(gguf, as_it_is(), HOST, context);
    true
}

/// The fixtures and the demo model, all on the device.
#[test]
fn plans_are_what_engines_allocate() {
    for file in fs::read_dir(fixtures().join("models")).unwrap() {
        let gguf = Gguf::open(file.unwrap().path()).unwrap();
        compare(&gguf, as_it_is(), DEVICE, 10_000);
    }
    compare(&demo::open().unwrap(), as_it_is(), DEVICE, 50_000);
}

/// Matrices and caches in many parts, the cache and the experts of two layers on the host.
#[test]
fn plans_of_a_poor_device_are_right_too() {
    let restrict = Restrictions { max_binding: Some(256 << 10), ..Restrictions::default() };
    let poor = DeviceOptions { restrict, ..as_it_is() };
    for name in ["tiny-qwen4exp", "tiny-qwen35moe", "tiny-llama"] {
        let gguf = Gguf::open(fixtures().join(format!("models/{name}.gguf"))).unwrap();
        compare(&gguf, poor.clone(), BOTH, 5000);
    }
}

#[test]
fn plans_are_right_on_every_placement() {
    let file = zeros::hybrid(4);
    compare_everywhere(&Gguf::open(file.path()).unwrap(), 150_000);
}

#[test]
#[ignore = "2 GiB: LP_NUM_THREADS=2 cargo test --test all memory:: -- --ignored --test-threads=1"]
fn plans_of_2_gib_are_right_on_every_placement() {
    let file = zeros::hybrid(160);
    let gguf = Gguf::open(file.path()).unwrap();
    assert!(gguf.file_len() > 2 * GIB, "{}", gguf.file_len());
    compare_everywhere(&gguf, 150_000);
}

/// A conversation in a process of its own.
struct Conversation(Child, BufReader<std::process::ChildStderr>);

impl Conversation {
    /// Waits until the model is loaded.
    fn begin(model: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_engine"))
            .args(["run", "-i", "-c", "4096", "-n", "2", "--temp", "0", "--ignore-eos", "-m"])
            .arg(model)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut this = Self(child, errors);
        this.wait_for("sampling:");
        this
    }

    fn wait_for(&mut self, word: &str) {
        let mut all = String::new();
        while !all.lines().last().is_some_and(|line| line.contains(word)) {
            assert!(self.1.read_line(&mut all).unwrap() > 0, "no {word}: {all}");
        }
    }

    /// Says something of more than a few tokens and waits for the answer.
    fn turn(&mut self) {
        let stdin = self.0.stdin.as_mut().unwrap();
        stdin.write_all(b"one two three four five six seven eight nine ten\n").unwrap();
        self.wait_for("| generated");
    }

    /// A field of what the system says of the process, in bytes.
    fn status(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `engine plan` says of that conversation: on the device, and there and in host memory.
fn planned(model: &Path) -> (u64, u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_engine"))
        .args(["plan", "-c", "4096", "--checkpoint-memory", "1G", "--ctx-checkpoints", "1"])
        .args(["--json", "-m"])
        .arg(model)
        .output()
        .unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let heap = |i: usize| plan["heaps"][i]["planned"].as_u64().unwrap();
    (plan["bytes"]["weights_device"].as_u64().unwrap(), heap(0) + heap(1))
}

/// What a process takes besides the plan (program, driver, compiled kernels, what uploads leave in
/// shared blocks, 150 MiB or so with Mesa's llvmpipe) does not depend on the size of the model: it
/// is what a smaller model of the same layers takes besides its plan.
fn check_resident(large: &Temporary, small: &Temporary) {
    let of = |file: &Temporary| {
        let mut conversation = Conversation::begin(file.path());
        let peak = conversation.status("VmHWM");
        conversation.turn();
        (peak, conversation.status("VmRSS"), planned(file.path()))
    };
    let (_, resident, (_, plan)) = of(small);
    let besides = resident - plan;
    let (peak, resident, (weights, plan)) = of(large);
    println!("plan {plan}, resident {resident}, besides {besides}, peak while loading {peak}");
    let share = (resident - besides) as f64 / plan as f64;
    assert!((share - 1.0).abs() < 0.05, "{resident} resident, {plan} planned, {besides} besides");
    assert!(peak < weights + 300 * MIB, "{peak} while loading {weights}");
}

/// Where the memory of the device is that of the process.
fn is_software() -> bool {
    let engine = Engine::from_gguf(&demo::open().unwrap(), &Default::default(), &mut |_, _| ());
    cfg!(target_os = "linux")
        && engine.unwrap().device().0.kind == engine::gpu::AdapterKind::Software
}

#[test]
fn resident_memory_is_that_of_the_plan() {
    if is_software() {
        check_resident(&zeros::hybrid(40), &zeros::hybrid(16));
    }
}

#[test]
#[ignore = "2 GiB: LP_NUM_THREADS=2 cargo test --test all memory:: -- --ignored --test-threads=1"]
fn resident_memory_of_2_gib_is_that_of_the_plan() {
    if is_software() {
        check_resident(&zeros::hybrid(160), &zeros::hybrid(16));
    }
}
