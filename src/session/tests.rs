//! Whatever happens to a process that saves, there is the earlier session or the new one.

use super::*;
use crate::Result;
use proptest::{prelude::*, test_runner::TestRunner};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// Names the file to a process that is to be killed.
const TARGET: &str = "ENGINE_TEST_SESSION";
const STATE: usize = 3 << 20;

fn identity() -> Identity {
    Identity::default().with("model", "a test")
}

/// Saves a session of `tokens` times its number.
fn save(path: &Path, number: u32) -> Result<u64> {
    let (tokens, state) = (vec![number; 1 + number as usize % 1000], vec![number as u8; STATE]);
    let (tokens, text): (&[u8], &[u8]) = (bytemuck::cast_slice(&tokens), b"[]");
    let parts = [("tokens", tokens), ("conversation", text), ("state", &state)];
    let header = Header {
        identity: identity(),
        checkpoints: vec![1],
        parts: parts.iter().map(|(name, bytes)| ((*name).into(), bytes.len() as u64)).collect(),
    };
    let mut writer = Writer::begin(path, &header)?;
    for (_, bytes) in parts {
        writer.part(|sink| bytes.chunks(PIECE).try_for_each(sink))?;
    }
    writer.finish()
}

/// The number of the session at `path`, once all of it was read.
fn number(path: &Path) -> Result<u32> {
    let mut saved = Saved::open(path, &identity(), 1000)?;
    let number = saved.tokens()[0];
    let mut state = vec![0; STATE];
    saved.part("state", STATE as u64, |fill| fill(&mut state))?;
    saved.finish()?;
    assert!(state.iter().all(|byte| *byte == number as u8));
    assert!(saved.conversation().is_empty());
    Ok(number)
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("engine-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Run by the test below in a process of its own; alone it does nothing.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(TARGET).map(PathBuf::from) else { return };
    let first = number(&path).unwrap();
    for next in first + 1.. {
        save(&path, next).unwrap();
    }
}

#[test]
fn a_process_killed_while_it_saves_leaves_a_whole_session() {
    let folder = folder("killed");
    let path = folder.join("x.session");
    save(&path, 1).unwrap();
    let (mut before, mut parts) = (1, 0);
    for round in 0..100_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "session::tests::saves_until_it_is_killed"])
            .env(TARGET, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(5000 + round * 7919 % 25_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = number(&path).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(now >= before, "round {round}: {now} after {before}");
        before = now;
        parts += usize::from(fs::read_dir(&folder).unwrap().count() > 1);
    }
    assert!(before > 1 && parts > 10, "{before} sessions saved, {parts} saves cut short");
    // What the killed have left goes with the next save.
    save(&path, before).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_save_that_fails_leaves_what_was_there() {
    let folder = folder("failed");
    let path = folder.join("x.session");
    save(&path, 7).unwrap();
    let header = Header { identity: identity(), checkpoints: Vec::new(), parts: Vec::new() };
    let mut writer = Writer::begin(&path, &header).unwrap();
    let failed = writer.part(|_| Err(crate::Error::Device("it is gone".into())));
    assert!(failed.is_err());
    drop(writer);
    assert_eq!(number(&path).unwrap(), 7);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // A save by another process at the same time is not touched.
    let other = folder.join(".x.session.1.part");
    let file = fs::File::create(&other).unwrap();
    file.lock().unwrap();
    save(&path, 8).unwrap();
    assert!(other.exists());
    drop(file);
    save(&path, 9).unwrap();
    assert!(!other.exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_session_is_not_replaced() {
    let folder = folder("other");
    let path = folder.join("notes.txt");
    fs::write(&path, "Buy milk.").unwrap();
    let text = save(&path, 1).unwrap_err().to_string();
    assert!(text.ends_with("notes.txt is not a session file"), "{text}");
    assert!(save(&folder, 1).is_err() && save(Path::new("/"), 1).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"Buy milk.");
    fs::write(&path, "").unwrap();
    save(&path, 1).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// Whoever makes a file can make its checksums, too.
#[test]
fn headers_that_make_no_sense_are_refused() {
    let folder = folder("headers");
    let path = folder.join("x.session");
    let name = prop_oneof![Just("tokens"), Just("conversation"), Just("state")];
    let bytes = prop_oneof![0..40_u64, Just(1 << 40), Just(u64::MAX), any::<u64>()];
    let header = (
        prop::collection::vec(prop_oneof![0..4_u32, any::<u32>()], 0..4),
        prop::collection::vec((name.prop_map(String::from), bytes), 0..4),
    );
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(header, 0..100_usize), |((checkpoints, parts), spare)| {
            let header = Header { identity: identity(), checkpoints, parts };
            let mut file = fs::File::create(&path).unwrap();
            let length = header.write(&mut file).unwrap();
            // As long as it should be, where that can be.
            let whole = header.file_bytes(length).filter(|whole| *whole < 1 << 20);
            file.set_len(whole.unwrap_or(length + spare as u64)).unwrap();
            let opened = Saved::open(&path, &identity(), 1000);
            prop_assert!(matches!(opened, Err(crate::Error::Session { .. })), "{opened:?}");
            Ok(())
        })
        .unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn parts_have_to_be_those_that_are_expected() {
    let folder = folder("parts");
    let path = folder.join("x.session");
    save(&path, 3).unwrap();
    let open = || Saved::open(&path, &identity(), 1000).unwrap();
    let take = |saved: &mut Saved, name: &str, bytes: usize| {
        let mut state = vec![0; bytes];
        saved.part(name, bytes as u64, |fill| fill(&mut state)).map_err(|e| e.to_string())
    };
    let text = take(&mut open(), "keys", STATE).unwrap_err();
    assert!(text.ends_with("has state, where keys belong"), "{text}");
    let text = take(&mut open(), "state", STATE - 4).unwrap_err();
    assert!(text.contains("bytes of state, where"), "{text}");
    let text = open().finish().unwrap_err().to_string();
    assert!(text.ends_with("has state, which do not belong there"), "{text}");
    let mut saved = open();
    take(&mut saved, "state", STATE).unwrap();
    let text = take(&mut saved, "more", 4).unwrap_err();
    assert!(text.ends_with("lacks more"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}
