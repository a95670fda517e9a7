//! Session files: what comes back from one is what was saved, to the bit, or nothing.

use crate::common::{
    devices::{poisoned, small_bindings_and_grids},
    expected::{Expected, fixtures},
};
use engine::{
    Engine, EngineOptions, Error,
    gpu::DeviceOptions,
    history::History,
    kv::{
        KvHost,
        KvType::{self, F16, Q4_0, Q8_0},
        Placement,
    },
    text::Message,
};
use proptest::{prelude::*, test_runner::TestRunner};
use std::{
    cell::RefCell,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// Tokens before the file, and where it can go back to: inside of blocks and tiles.
const SAVED: usize = 333;
const POINT: usize = 201;

/// A directory that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("engine-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(model: &str, device: DeviceOptions, [k, v]: [KvType; 2]) -> Engine {
    let options = EngineOptions {
        device,
        chunk: 96,
        cache_k: k,
        cache_v: v,
        kv_staging: 0,
        ..EngineOptions::default()
    };
    let path = fixtures().join(format!("models/{model}.gguf"));
    Engine::load(&path, &options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

fn prompt(model: &str) -> Vec<u32> {
    let expected = Expected::load(model);
    expected.prompts.into_iter().max_by_key(|p| p.ids.len()).unwrap().ids
}

fn prefill(engine: &mut Engine, history: &mut History, ids: &[u32]) {
    engine.prefill(history.sequence(), ids, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// The logits of what follows: some tokens at once, then one at a time.
fn go_on(engine: &mut Engine, history: &mut History, ids: &[u32]) -> Vec<Vec<f32>> {
    prefill(engine, history, ids);
    let mut logits = vec![engine.logits(history.sequence()).unwrap()];
    for _ in 0..3 {
        let token = engine.argmax(history.sequence()).unwrap();
        engine.decode(history.sequence(), token).unwrap();
        logits.push(engine.logits(history.sequence()).unwrap());
    }
    logits
}

/// A history of [`SAVED`] tokens of `ids` with a checkpoint, which most models need.
fn history(engine: &mut Engine, ids: &[u32]) -> History {
    let mut history = History::new(engine).unwrap();
    prefill(engine, &mut history, &ids[..POINT]);
    history.keep(engine, 4);
    prefill(engine, &mut history, &ids[POINT..SAVED]);
    history
}

fn load(engine: &Engine, path: &Path, into: &mut History) -> Result<(), Error> {
    engine.load_session(engine.open_session(path)?, into)
}

fn restores_to_the_bit(engine: &mut Engine, ids: &[u32], path: &Path, what: &str) {
    let mut kept = history(engine, ids);
    let talk = [Message::new("user", "Hello?")];
    let bytes = engine.save(path, &kept, &talk).unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), bytes);
    let expected = go_on(engine, &mut kept, &ids[SAVED..]);
    let changed: Vec<u32> = ids[..POINT].iter().chain(&ids[..60]).copied().collect();
    assert_eq!(kept.rewind(engine, &changed, true).unwrap(), POINT, "{what}");
    let expected_after_point = go_on(engine, &mut kept, &ids[..60]);

    let saved = engine.open_session(path).unwrap();
    assert_eq!((saved.tokens(), saved.conversation()), (&ids[..SAVED], &talk[..]));
    // Over what another conversation has left.
    load(engine, path, &mut kept).unwrap();
    assert_eq!(kept.tokens(), &ids[..SAVED]);
    assert!(go_on(engine, &mut kept, &ids[SAVED..]) == expected, "{what}");
    drop(kept);
    let mut fresh = History::new(engine).unwrap();
    load(engine, path, &mut fresh).unwrap();
    assert!(go_on(engine, &mut fresh, &ids[SAVED..]) == expected, "{what}, fresh");
    load(engine, path, &mut fresh).unwrap();
    assert_eq!(fresh.rewind(engine, &changed, true).unwrap(), POINT, "{what}");
    let after_point = go_on(engine, &mut fresh, &ids[..60]);
    assert!(after_point == expected_after_point, "{what}, after the checkpoint");
}

#[test]
fn what_follows_a_restored_session_is_what_followed_the_saved_one() {
    let folder = Folder::new("restored");
    let path = folder.file("x.session");
    for model in ["tiny-qwen3", "tiny-qwen35", "tiny-qwen4exp"] {
        let ids = prompt(model);
        for (kv, many) in [([F16, F16], false), ([Q8_0, Q4_0], true)] {
            // Small bindings cut the context into many segments.
            let device = if many { small_bindings_and_grids() } else { poisoned() };
            let mut engine = open(model, device, kv);
            let place = |wish, device| Placement { wish, in_place: true, device, host: u64::MAX };
            engine.place(place(KvHost::Off, u64::MAX));
            let bytes = {
                let _history = history(&mut engine, &ids);
                engine.memory().device.kv
            };
            for (wish, device) in
                [(KvHost::Off, u64::MAX), (KvHost::On, 0), (KvHost::Auto, bytes / 2)]
            {
                engine.place(place(wish, device));
                let what = format!("{model}, {kv:?}, {wish:?}, {many}");
                restores_to_the_bit(&mut engine, &ids, &path, &what);
            }
        }
    }
}

/// A file does not depend on segments, placement or context of who saves it.
#[test]
fn a_session_moves_between_devices_and_contexts() {
    let folder = Folder::new("moves");
    let [first, second] = ["first", "second"].map(|name| folder.file(name));
    for model in ["tiny-qwen35", "tiny-qwen4exp"] {
        let ids = prompt(model);
        let mut from = open(model, poisoned(), [Q8_0, F16]);
        let kept = history(&mut from, &ids);
        from.save(&first, &kept, &[]).unwrap();
        let to = open(model, small_bindings_and_grids(), [Q8_0, F16]);
        let mut moved = History::new(&to).unwrap();
        load(&to, &first, &mut moved).unwrap();
        to.save(&second, &moved, &[]).unwrap();
        assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "{model}");
        let back = from.open_session(&second).unwrap();
        assert_eq!(back.checkpoints(), [POINT as u32]);
    }
}

#[test]
fn sessions_of_something_else_are_refused_with_what_differs() {
    let folder = Folder::new("else");
    let path = folder.file("x.session");
    let ids = prompt("tiny-qwen35");
    let mut engine = open("tiny-qwen35", poisoned(), [F16, F16]);
    let kept = history(&mut engine, &ids);
    engine.save(&path, &kept, &[]).unwrap();
    let refusal = |engine: &Engine, path: &Path| match engine.open_session(path) {
        Err(error @ (Error::Session { .. } | Error::Io { .. } | Error::Usage(_))) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    let other = open("tiny-qwen35moe", poisoned(), [F16, F16]);
    let text = refusal(&other, &path);
    assert!(text.contains("x.session: was saved with another model: qwen35 "), "{text}");
    let other = open("tiny-qwen35", poisoned(), [F16, Q8_0]);
    let text = refusal(&other, &path);
    assert!(text.ends_with("another type of values: f16, where this one is q8_0"), "{text}");
    let path_of_model = fixtures().join("models/tiny-qwen35.gguf");
    let load = |options| Engine::load(&path_of_model, &options, &mut |_, _| ()).unwrap();
    let mut options = EngineOptions { device: poisoned(), ..EngineOptions::default() };
    options.rope.base = Some(1234.0);
    assert!(refusal(&load(options), &path).contains("another rotary embedding"));
    let options =
        EngineOptions { device: poisoned(), context: Some(300), ..EngineOptions::default() };
    let text = refusal(&load(options), &path);
    assert!(text.ends_with("holds 333 tokens, where the context holds 300"), "{text}");
    assert!(refusal(&engine, &path_of_model).ends_with("is not a session file"));
    assert!(refusal(&engine, &folder.0).ends_with("is not a file"));
    assert!(refusal(&engine, &folder.file("none")).contains("none: "));
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    fs::write(&path, &bytes).unwrap();
    let text = refusal(&engine, &path);
    assert!(text.ends_with("has version 2 of the format, where this program has 1"), "{text}");
    // What cannot be written leaves nothing behind.
    let nowhere = folder.file("none/x.session");
    assert!(matches!(engine.save(&nowhere, &kept, &[]), Err(Error::Io { .. })));
}

#[test]
fn damage_is_refused_and_leaves_an_empty_history() {
    let folder = Folder::new("damage");
    let path = folder.file("x.session");
    for model in ["tiny-qwen35", "tiny-qwen4exp"] {
        let ids = prompt(model);
        let mut engine = open(model, poisoned(), [F16, F16]);
        let kept = history(&mut engine, &ids[..]);
        engine.save(&path, &kept, &[Message::new("user", "Hello?")]).unwrap();
        let whole = fs::read(&path).unwrap();
        let history = RefCell::new(History::new(&engine).unwrap());
        let refuse = |bytes: &[u8]| -> Result<(), TestCaseError> {
            fs::write(&path, bytes).unwrap();
            let mut history = history.borrow_mut();
            match load(&engine, &path, &mut history) {
                Err(Error::Session { .. }) => {}
                // Nothing says that it was one.
                Err(Error::Usage(_)) if !bytes.starts_with(b"ENGSESS\n") => {}
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            }
            prop_assert!(history.tokens().is_empty() && history.checkpoint_bytes() == 0);
            Ok(())
        };
        for length in [0, 1, 15, 16, 17, 100, whole.len() - 1] {
            refuse(&whole[..length]).unwrap();
        }
        refuse(&[&whole[..], &[0]].concat()).unwrap();
        let at = 0..whole.len();
        let damage = prop_oneof![
            at.clone().prop_map(|length| (length, None)),
            (at.clone(), 0..8_u32).prop_map(|(at, bit)| (at, Some(bit))),
            // Where numbers and names are.
            (0..2000.min(whole.len()), 0..8_u32).prop_map(|(at, bit)| (at, Some(bit))),
        ];
        TestRunner::new(ProptestConfig {
            cases: 300,
            failure_persistence: None,
            ..Default::default()
        })
        .run(&damage, |(at, bit)| {
            let mut bytes = whole.clone();
            match bit {
                Some(bit) => bytes[at] ^= 1 << bit,
                None => bytes.truncate(at),
            }
            refuse(&bytes)
        })
        .unwrap();
        // The history is as good as a new one.
        fs::write(&path, &whole).unwrap();
        let mut history = history.into_inner();
        load(&engine, &path, &mut history).unwrap();
        assert_eq!(history.tokens(), kept.tokens());
    }
}
