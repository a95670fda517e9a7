//! `engine plan`: the reference values of spec/kv-offload.md 7.1; engines are loaded by their plans.

use crate::common::{devices::as_it_is, expected::fixtures};
use engine::{
    Engine, EngineOptions, Gguf, demo,
    gpu::Caps,
    kv::{KvHost, KvType},
    ngram::Storage,
    plan::{
        Bandwidth, Checkpoints, Choices, Context, HeapSize, Heaps, MemoryLimits, Model, Plan,
        Weights,
    },
    quant::BlockType,
};
use std::{
    ops::ControlFlow,
    process::{Command, Stdio},
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn choices(context: u32, kv_host: KvHost) -> Choices {
    Choices {
        context: Context::Tokens(context),
        sequences: 1,
        cache_k: KvType::F16,
        cache_v: KvType::F16,
        kv_host,
        kv_staging: 32 * MIB,
        chunk: 512,
        experts_host: 0,
        ngram: Storage::Disk,
        checkpoints: Checkpoints::default(),
        bandwidth: Bandwidth::default(),
    }
}

fn of_type(ty: KvType, context: u32) -> Choices {
    Choices { cache_k: ty, cache_v: ty, ..choices(context, KvHost::Auto) }
}

/// A plan of a machine of a TiB of each memory.
fn plan(model: &str, choices: &Choices) -> Plan {
    let model = Model::find(model, None).unwrap();
    let heaps = Heaps::apart(HeapSize::device(1 << 40, ""), HeapSize::host(1 << 40, ""));
    Plan::new(&model, choices, &Caps::usual(), &heaps).unwrap()
}

/// The status of `engine plan ARGS --json`, what it printed and what it said.
fn command(args: &[&str]) -> (i32, serde_json::Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engine"));
    let output =
        command.arg("plan").args(args).arg("--json").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let plan = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), plan, said)
}

#[test]
fn table_a_and_the_families() {
    let extra = 3840;
    for (model, f16, q8_0, q4_0) in [
        ("llama-3-8b", 131_072, 69_632, 36_864),
        ("Qwen3-8B", 147_456, 78_336, 41_472),
        ("Qwen3-30B-A3B", 98_304, 52_224, 27_648),
        ("Qwen3-Next-80B-A3B", 24_576, 13_056, 6_912),
        ("Qwen3.5-0.8B", 12_288, 6528, 3456),
        ("Qwen3.5-4B", 32_768, 17_408, 9216),
        ("Qwen3.5-9B", 32_768, 17_408, 9216),
        ("Qwen3.5-27B", 65_536, 34_816, 18_432),
        ("Qwen3.8-27B", 65_536, 34_816, 18_432),
        ("Qwen3.5-35B-A3B", 20_480, 10_880, 5760),
        ("Qwen3.5-122B-A10B", 24_576, 13_056, 6912),
        ("Qwen3.5-397B-A17B", 30_720, 16_320, 8640),
        ("Qwen3.8-Flash-Next", 24_576 + extra, 13_056 + extra, 6912 + extra),
    ] {
        for (ty, bytes) in [(KvType::F16, f16), (KvType::Q8_0, q8_0), (KvType::Q4_0, q4_0)] {
            let found = plan(model, &of_type(ty, 4096)).bytes_per_token;
            assert_eq!((found.total, found.device, found.host), (bytes, bytes, 0), "{model}");
            assert_eq!((found.k, found.k + found.v), (found.v, found.kv), "{model}");
        }
    }
    for (context, mib) in
        [(4096, 512), (16_384, 2048), (32_768, 4096), (65_536, 8192), (131_072, 16_384)]
    {
        let found = plan("Llama-3-8B", &choices(context, KvHost::Auto));
        assert_eq!(found.bytes.kv, mib * MIB);
        assert_eq!(found.bytes.recurrent, 0);
    }
}

#[test]
fn table_b() {
    for (context, mib) in
        [(4096, 80), (32_768, 640), (65_536, 1280), (131_072, 2560), (262_144, 5120)]
    {
        let found = plan("Qwen3.6-35B-A3B", &choices(context, KvHost::Auto));
        assert_eq!((found.bytes_per_token.total, found.bytes.kv), (20_480, mib * MIB));
        assert_eq!(found.bytes.recurrent, 65_863_680);
        let found = plan("Qwen3.6-35B-A3B", &of_type(KvType::Q8_0, context));
        assert_eq!((found.bytes_per_token.total, found.bytes.kv), (10_880, mib * MIB * 17 / 32));
    }
    let slots = Choices { sequences: 4, ..choices(4096, KvHost::Auto) };
    let found = plan("Qwen3.5-35B-A3B", &slots);
    assert_eq!((found.bytes.recurrent, found.bytes.kv), (263_454_720, 4 * 80 * MIB));
    // Both halves of the cache on the host cost the bus, all of it at every token.
    let bandwidth = Bandwidth { device: Some(1e15), bus: Some(26.5e9) };
    let host = Choices { bandwidth, ..choices(131_072, KvHost::On) };
    let reads = plan("Qwen3.5-35B-A3B", &host).read_per_token;
    let last = reads.last().unwrap();
    assert_eq!((last.depth, last.kv), (131_072, 131_072 * 20_480));
    assert!((last.ms.unwrap() - 101.3).abs() < 0.1, "{last:?}");
}

#[test]
fn table_c() {
    let flash = |choices: &Choices| plan("Qwen3.8-Flash-Next", choices);
    let found = flash(&choices(1 << 20, KvHost::On));
    let token = found.bytes_per_token;
    assert_eq!(
        (token.k, token.v, token.index_raw, token.index_pooled),
        (12_288, 12_288, 3072, 768)
    );
    assert_eq!((token.host, token.device, token.total), (27_648, 768, 28_416));
    for tokens in [1 << 20, 3 << 20] {
        let found = flash(&choices(tokens, KvHost::On));
        let mi = u64::from(tokens >> 20);
        assert_eq!(found.heaps[1].planned, mi * 27 * GIB);
        assert_eq!(found.bytes.index_pooled, mi * 768 * MIB);
        assert_eq!(found.bytes.kv + found.bytes.index_raw, mi * 27 * GIB);
    }
    assert_eq!(found.bytes.recurrent, 118_038_528);
    assert_eq!(found.bytes.staging, 32 * MIB);
    let bandwidth = Bandwidth { device: Some(835e9), bus: Some(26.5e9) };
    let reads = flash(&Choices { bandwidth, ..choices(1_000_000, KvHost::On) }).read_per_token;
    let last = reads.last().unwrap();
    assert_eq!((last.kv, last.index_pooled), (48 * MIB, 768_000_000));
    let on_device = (last.total - last.kv) as f64 / 835e9;
    // 1.90 ms for the 48 MiB.
    assert!((last.ms.unwrap() / 1e3 - on_device - 0.0019).abs() < 5e-6, "{last:?}");
}

/// A3, B2, B5 and what section 2 says of Flash-Next.
#[test]
fn quantised_caches() {
    use KvType::{Bf16, F16, F32, Q4_0, Q8_0};
    let of = |model, context, [cache_k, cache_v]: [KvType; 2]| {
        plan(model, &Choices { cache_k, cache_v, ..choices(context, KvHost::On) })
    };
    for (model, types, bytes) in [
        ("Llama-3-8B", [Q8_0, Q8_0], 69_632),
        ("Llama-3-8B", [Q4_0, Q4_0], 36_864),
        ("Llama-3-8B", [Bf16, Bf16], 131_072),
        ("Llama-3-8B", [Q8_0, Q4_0], (69_632 + 36_864) / 2),
        ("Qwen3.5-35B-A3B", [Q8_0, Q8_0], 10_880),
        ("Qwen3.5-35B-A3B", [Q4_0, Q4_0], 5_760),
        ("Qwen3.5-35B-A3B", [F16, F32], 30_720),
        ("Qwen3.8-Flash-Next", [Q8_0, Q8_0], 16_128),
        ("Qwen3.8-Flash-Next", [Q4_0, Q4_0], 9_984),
    ] {
        let token = of(model, 4096, types).bytes_per_token;
        let pooled = if model == "Qwen3.8-Flash-Next" { 768 } else { 0 };
        assert_eq!((token.host, token.device), (bytes, pooled), "{model} {types:?}");
    }
    for (context, kib) in
        [(4096, 43_520), (32_768, 348_160), (65_536, 696_320), (131_072, 1_392_640)]
    {
        let found = of("Qwen3.6-35B-A3B", context, [Q8_0, Q8_0]);
        assert_eq!(found.bytes.kv, kib * 1024);
    }
}

/// C4: 6.33 GiB free for keys and values of everything hold 239,104 tokens, and all of it really
/// fits.
#[test]
fn the_longest_context_is_that_of_the_formula() {
    let model = Model::find("qwen3.8-flash-next", None).unwrap();
    let known = plan("qwen3.8-flash-next", &choices(239_104, KvHost::Off));
    let fixed = known.heaps[0].planned - 239_104 * 28_416;
    let free = (6.33 * GIB as f64) as u64;
    let mut device = HeapSize::device(200 * GIB, "");
    device.size = fixed + free + device.reserve;
    let heaps = Heaps::apart(device, HeapSize::host(64 * GIB, ""));
    let most = |wish| {
        let choices = Choices { context: Context::Max, ..choices(0, wish) };
        Plan::new(&model, &choices, &Caps::usual(), &heaps).unwrap()
    };
    let found = most(KvHost::Off);
    assert_eq!((found.max_context, found.context), (239_104, 239_104));
    assert!(found.fits && found.check().is_ok());
    assert_eq!(found.bytes.kv + found.bytes.index_raw + found.bytes.index_pooled, 239_104 * 28_416);
    // On the host 60.8 GiB are free, on the device 6.33 GiB for 768 bytes a token.
    let tokens = (64 * GIB - heaps.host.reserve) / 27_648;
    assert_eq!(u64::from(most(KvHost::On).max_context), tokens / 256 * 256);
    // Both together hold more than either: what is on the host leaves 768 bytes on the device.
    let both = most(KvHost::Auto);
    let sum = tokens + (free - 768 * tokens) / 28_416;
    let found = u64::from(both.max_context);
    assert!(found <= sum && found > sum - sum / 50, "{found} of {sum}");
    assert!(both.heaps[1].planned > 0 && both.fits);
    let next = choices(both.max_context + 256, KvHost::Auto);
    assert!(!Plan::new(&model, &next, &Caps::usual(), &heaps).unwrap().fits);
}

#[test]
fn weights_are_what_is_said() {
    let read = |name: &str, weights| {
        let model = Model::find(name, Some(weights)).unwrap();
        let heaps = Heaps::apart(HeapSize::device(1 << 40, ""), HeapSize::host(1 << 40, ""));
        Plan::new(&model, &choices(4096, KvHost::Off), &Caps::usual(), &heaps).unwrap()
    };
    let weights = "q4_0".parse().unwrap();
    // performance.md 3: 1.66 GB a token.
    let found = read("Qwen3.6-35B-A3B", weights).read_per_token[0].weights as f64;
    // Routers and the like are never quantised.
    assert!((1.66e9..1.76e9).contains(&found), "{found}");
    let found = read("Qwen3.6-35B-A3B", "Q8_0".parse().unwrap()).bytes.weights_device as f64;
    // spec/gguf.md 5, a file of 35.19 GiB with a draft block of a 40th of the layers.
    assert!((found / (35.19 * GIB as f64) - 40.0 / 41.0).abs() < 0.02, "{found}");
    let found = read("Qwen3.8-Flash-Next", Weights::Bytes(100 * GIB)).bytes;
    assert_eq!(found.ngram_table, 320_001_536 * 90);
    let all = found.ngram_table + found.weights_device;
    assert!(all.abs_diff(100 * GIB) < 64 * MIB, "{all}");
    let choices = Choices { experts_host: 24, ..choices(4096, KvHost::Off) };
    let half = plan("Qwen3.8-Flash-Next", &choices).bytes;
    let none = plan("Qwen3.8-Flash-Next", &Choices { experts_host: 0, ..choices }).bytes;
    assert_eq!(half.weights_device + half.weights_host, none.weights_device);
    assert!(half.weights_host > none.weights_device / 3 && none.weights_host == 0);
}

#[test]
fn the_command_prints_a_plan_or_says_what_is_wrong() {
    let machine = ["--device-memory", "24G", "--host-memory", "128G"];
    let with = |args: &[&'static str]| [args, &machine].concat();
    let (status, plan, _) = command(&with(&["-m", "QWEN3.5-35b-a3b", "-c", "65536"]));
    assert_eq!(status, 0);
    for key in
        ["bytes_per_token", "bytes", "heaps", "max_context", "read_per_token", "fits", "notes"]
    {
        assert!(!plan[key].is_null(), "{key}: {plan}");
    }
    assert_eq!(plan["bytes"]["kv"], 1280 * MIB);
    assert_eq!(plan["heaps"][0]["size"], 24 * GIB);
    assert_eq!(plan["fits"], true);
    let (status, plan, said) = command(&with(&["-m", "Qwen3.8-Flash-Next"]));
    assert_eq!((status, &plan["fits"], &plan["max_context"]), (1, &false.into(), &0.into()));
    assert!(said.contains("does not fit") && said.lines().count() == 1, "{said}");
    let (status, _, said) = command(&with(&["-m", "no-such-model"]));
    assert!(status == 2 && said.contains("Qwen3.8-Flash-Next, Qwen3-8B"), "{said}");
    let (status, _, said) = command(&with(&["-m", "Qwen3-8B", "--weights", "q9"]));
    assert!(status == 2 && said.contains("Q4_K_M"), "{said}");
    // llama.cpp's spellings of sequences and of what is kept free.
    let (_, four, _) = command(&with(&["-m", "Qwen3.5-0.8B", "-c", "4096", "-np", "4"]));
    assert_eq!(four["bytes"]["kv"], 4 * 4096 * 12_288);
    let (_, kept, _) = command(&with(&["-m", "Qwen3.5-0.8B", "-c", "4096", "-fitt", "1024"]));
    assert_eq!(kept["heaps"][0]["reserve"], GIB);
    // This machine: where its figures are from is said.
    let (status, plan, said) = command(&["-m", "Qwen3.5-0.8B", "-c", "4096"]);
    assert!(status == 0 || said.contains("does not fit"), "{said}");
    assert!(plan["heaps"][0]["source"].as_str().is_some_and(|s| !s.is_empty()));
}

/// Steps as well, which have recordings.
#[test]
fn what_steps_add_is_planned() {
    let gguf = Gguf::open(fixtures().join("models/tiny-qwen4exp.gguf")).unwrap();
    let options = EngineOptions { device: as_it_is(), ..EngineOptions::default() };
    let mut engine = Engine::from_gguf(&gguf, &options, &mut |_, _| ()).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    engine.prefill(&mut seq, &[7; 512], &mut |_| ControlFlow::Continue(())).unwrap();
    engine.decode(&mut seq, 1).unwrap();
    let model = Model::of_file(&gguf, "").unwrap();
    let heaps = Heaps::apart(HeapSize::device(1 << 40, ""), HeapSize::host(1 << 40, ""));
    let choices = choices(engine.context(), KvHost::Auto);
    let plan = Plan::new(&model, &choices, engine.gpu().caps(), &heaps).unwrap();
    let found = engine.memory().device;
    let (planned, there) = (plan.bytes.workspace as f64, (found.scratch + found.staging) as f64);
    assert!((planned / there - 1.0).abs() < 0.02, "{planned} planned, {there} allocated");
}

#[test]
fn checkpoints_are_planned_on_the_host() {
    let of = |memory, count| {
        let checkpoints = Checkpoints { memory, count };
        let choices = Choices { sequences: 2, checkpoints, ..choices(4096, KvHost::Off) };
        let plan = plan("Qwen3.8-Flash-Next", &choices);
        assert_eq!(plan.bytes.recurrent, 2 * 118_038_528);
        assert_eq!(plan.heaps[1].planned, plan.bytes.checkpoints);
        plan.bytes.checkpoints
    };
    assert_eq!(of(GIB, 32), GIB);
    assert_eq!(of(GIB, 3), 6 * 118_038_528);
    assert_eq!(of(0, 3), 0);
}

/// They are stacked in one matrix of values.
#[test]
fn tensors_of_different_types_in_one_matrix_are_counted_as_what_they_become() {
    let mut model = Model::find("Qwen3.5-35B-A3B", Some("Q8_0".parse().unwrap())).unwrap();
    let weights = |model: &Model| {
        let heaps = Heaps::apart(HeapSize::device(1 << 40, ""), HeapSize::host(1 << 40, ""));
        let plan = Plan::new(model, &choices(4096, KvHost::Off), &Caps::usual(), &heaps);
        plan.unwrap().bytes.weights_device
    };
    let mut of = |alpha, beta| {
        for (name, ty) in [("alpha", alpha), ("beta", beta)] {
            let name = format!("blk.0.ssm_{name}.weight");
            model.tensors.iter_mut().find(|t| t.name == name).unwrap().ty = ty;
        }
        weights(&model)
    };
    let (alike, different) =
        (of(BlockType::F16, BlockType::F16), of(BlockType::F16, BlockType::Bf16));
    // 2048 inputs, 32 heads, twice: two bytes more each.
    assert_eq!(different, alike + 2048 * 32 * 2 * 2);
    assert_eq!(of(BlockType::F32, BlockType::F32), different);
}

#[test]
fn an_engine_is_loaded_by_its_plan() {
    let load = |context, device_memory, kv_host| {
        let options = EngineOptions {
            context,
            kv_host,
            memory: MemoryLimits {
                device: Some(device_memory),
                host: Some(8 * GIB),
                reserve: None,
            },
            fit: true,
            ..EngineOptions::default()
        };
        Engine::from_gguf(&demo::open().unwrap(), &options, &mut |_, _| ())
    };
    // 512 MiB are kept free; the trained context of a million takes 672 MiB.
    let engine = load(None, 700 * MIB, KvHost::Off).unwrap();
    assert!((100_000..300_000).contains(&engine.context()), "{}", engine.context());
    let refused = |context, device_memory| match load(context, device_memory, KvHost::Off) {
        Ok(engine) => panic!("a context of {} is loaded", engine.context()),
        Err(e) => e.to_string(),
    };
    let text = refused(Some(1 << 20), 700 * MIB);
    assert!(text.contains("a context of 1048576 does not fit"), "{text}");
    assert!(text.contains(&format!("a context of {} would fit", engine.context())), "{text}");
    assert!(refused(None, 513 * MIB).contains("does not fit with any context"));
    // What does not fit the device goes to the host, as planned.
    let mut engine = load(Some(1 << 20), 700 * MIB, KvHost::Auto).unwrap();
    let mut seq = engine.new_sequence().unwrap();
    engine.synthetic_history(&mut seq, 1 << 19).unwrap();
    let found = engine.memory();
    assert!(found.device.total <= 188 * MIB && found.host.kv > 0, "{found:?}");
}
