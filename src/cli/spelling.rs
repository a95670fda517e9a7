//! llama.cpp's spellings (spec/cli-and-server.md 2), rewritten before clap sees the arguments:
//! clap knows no flags of one dash and several letters, and flags without a meaning here are
//! dropped with a notice rather than declared.

use std::{collections::VecDeque, ffi::OsString};

use clap::{Arg, ArgAction, Command};
use engine::{Error, Result};

/// llama.cpp's name → our long flag, some with the value that they stand for.
const SHORT: &[(&str, &str)] = &[
    ("-ub", "--ubatch-size"),
    ("-ngl", "--n-gpu-layers"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-pg", "--prompt-gen"),
    ("-dev", "--device"),
    ("-sys", "--system-prompt"),
    ("-cnv", "--conversation"),
    ("-no-cnv", "--raw"),
    ("--no-conversation", "--raw"),
    ("-st", "--single-turn"),
    ("-sp", "--special"),
    ("-rea", "--reasoning"),
    ("-np", "--parallel"),
    ("-ctxcp", "--ctx-checkpoints"),
    ("-cms", "--checkpoint-min-step"),
    ("-lv", "--log-verbosity"),
    ("-ncmoe", "--experts-host"),
    ("-cmoe", "--experts-host=all"),
    ("--cpu-moe", "--experts-host=all"),
    ("-fit", "--fit"),
    ("-fitt", "--fit-target"),
    ("-nkvo", "--kv-host=on"),
    ("-oe", "--output-err"),
    ("--no-kv-offload", "--kv-host=on"),
];

/// How many arguments follow a flag.
#[derive(Clone, Copy, Debug)]
enum Value {
    None,
    One,
    /// The next argument if it is one of these, or a list of them as llama-bench takes it.
    Maybe(&'static [&'static str]),
}

/// Flags that change nothing here: names, value, and the rest of the sentence "NAME is ignored: ".
const IGNORED: &[(&[&str], Value, &str)] = &[
    (
        &["-fa", "--flash-attn"],
        Value::Maybe(&["on", "off", "auto", "1", "0", "true", "false", "enabled", "disabled"]),
        "attention always runs with online softmax",
    ),
    (&["-lm", "--load-mode", "-lzm", "--lazy-mode"], Value::One, LOADING),
    (&["-mmp", "--mmap"], Value::Maybe(SWITCH), LOADING),
    (&["--no-mmap"], Value::None, LOADING),
    (
        &["--mlock"],
        Value::None,
        "the model lies in buffers of the driver, which keeps them in memory",
    ),
    (&["-t", "--threads", "-tb", "--threads-batch"], Value::One, NO_CPU),
    (
        &["-cb", "--cont-batching", "-nocb", "--no-cont-batching"],
        Value::None,
        "slots always take turns",
    ),
    (
        &["-mg", "--main-gpu", "-sm", "--split-mode", "-ts", "--tensor-split"],
        Value::One,
        "one device runs the whole model; choose it with --device",
    ),
    (&["--jinja", "--no-jinja"], Value::None, "chat templates are always Jinja"),
    (
        &["--warmup", "--no-warmup"],
        Value::None,
        "kernels are compiled when they are first needed, and kept on disk",
    ),
    (&["--numa", "--prio", "--prio-batch", "--poll", "--poll-batch"], Value::One, NO_CPU),
    (&["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict"], Value::One, NO_CPU),
    (&["-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch"], Value::One, NO_CPU),
    (&["--cpu-strict-batch"], Value::One, NO_CPU),
    (&["--repack", "-nr", "--no-repack"], Value::None, NO_CPU),
    (&["--no-host"], Value::Maybe(SWITCH), NO_CPU),
    (&["--progress"], Value::None, "what comes next is always told"),
    (&["-dt", "--defrag-thold"], Value::One, "the cache never fragments"),
    (&["--swa-full"], Value::None, "no supported model has a sliding window"),
    (
        &["--context-shift", "--no-context-shift"],
        Value::None,
        "a full context ends generation; tokens are never dropped",
    ),
    (&["--cache-reuse"], Value::One, "the cache is never shifted"),
    (&["--log-timestamps", "--no-log-timestamps"], Value::None, "log lines have one form"),
    (&["-e", "--escape"], Value::None, "escapes in --prompt count without it"),
    (&["--display-prompt", "--no-display-prompt"], Value::None, "the prompt is never printed"),
    (&["--color"], Value::Maybe(&["on", "off", "auto"]), "text is printed as it is"),
    (&["--keepalive"], Value::One, "the model stays for this run only"),
    (&["--metrics", "--slots", "--props"], Value::None, "every route is always there"),
    (&["--cache-prompt"], Value::None, "what can be reused is reused without it"),
    (&["-to", "--timeout"], Value::One, "a connection lasts as long as its client wants"),
];

/// What llama-bench's switches have.
const SWITCH: &[&str] = &["0", "1"];
const LOADING: &str =
    "weights go to the device and the file's pages are let go of: no second copy stays in any mode";
const NO_CPU: &str = "the CPU computes nothing";

/// Flags whose promise cannot be kept: names and the answer.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["-hf", "-hfr", "--hf-repo"],
        "models are not downloaded; download the GGUF file and pass it with -m",
    ),
    (
        &["-kvo", "--kv-offload"],
        "its meaning differs between tools (the KV cache on the GPU, or moved to host memory); \
         say --kv-host auto, on or off",
    ),
    (&["-mm", "--mmproj"], "images are not supported"),
    (
        &["-cram", "--cache-ram"],
        "its number counts MiB; say --checkpoint-memory with a unit, 8G for example",
    ),
    (&["--format"], "output cannot be held to a format"),
];

/// Arguments for clap, and what was dropped from them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Normalised {
    pub(crate) args: Vec<OsString>,
    pub(crate) notices: Vec<String>,
}

/// Rewrites `args` (program, subcommand, flags) for `command`. Values are joined to their flags
/// (`--n-predict=-1`), so that they may start with a dash.
///
/// # Errors
/// [`Error::Usage`] for a refused flag, or a one-dash flag of several letters that nobody knows,
/// which clap would misread as a cluster (`-np 4` as `-n p`).
pub(crate) fn normalise(
    args: impl IntoIterator<Item = OsString>,
    command: &Command,
) -> Result<Normalised> {
    let mut rest: VecDeque<OsString> = args.into_iter().collect();
    let mut out = Normalised::default();
    let subcommand = |arg: &OsString| command.find_subcommand(arg.to_str()?);
    let found = rest.iter().enumerate().skip(1).find_map(|(i, arg)| Some((i, subcommand(arg)?)));
    let Some((at, command)) = found else {
        out.args.extend(rest);
        return Ok(out);
    };
    out.args.extend(rest.drain(..=at));
    while let Some(arg) = rest.pop_front() {
        if arg == "--" {
            out.args.push(arg);
            out.args.extend(rest);
            break;
        }
        let Some(text) = arg.to_str().filter(|text| text.len() > 1 && text.starts_with('-')) else {
            out.args.push(arg);
            continue;
        };
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if let Some((_, answer)) = REFUSED.iter().find(|(names, _)| names.contains(&name)) {
            return Err(Error::Usage(format!("{name} is refused: {answer}")));
        }
        if let Some((_, value, why)) = IGNORED.iter().find(|(names, ..)| names.contains(&name)) {
            let follows = |next: &OsString| match value {
                Value::None => false,
                Value::One => true,
                Value::Maybe(words) => all_of(words, next),
            };
            if inline.is_none() && rest.front().is_some_and(follows) {
                rest.pop_front();
            }
            out.notices.push(format!("{name} is ignored: {why}"));
            continue;
        }
        let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| *long);
        let (long, inline) = match long.split_once('=') {
            // llama-bench's switch has a value.
            Some((long @ "--kv-host", _)) if rest.front().is_some_and(|n| all_of(SWITCH, n)) => {
                let list = rest.pop_front().unwrap_or_default();
                let list = list.to_string_lossy().replace('0', "auto").replace('1', "on");
                out.args.push(format!("{long}={list}").into());
                continue;
            }
            Some((long, value)) => (long, Some(value)),
            None => (long, inline),
        };
        let Some(known) = find(command, long) else {
            if is_unknown_short(name) {
                return Err(Error::Usage(format!("unknown flag {name} (see --help)")));
            }
            out.args.push(arg);
            continue;
        };
        let name = known.get_long().map_or_else(|| name.to_owned(), |long| format!("--{long}"));
        let separate = inline.is_none() && takes_value(known) && !known.is_require_equals_set();
        let value = match inline {
            Some(value) => Some(value.into()),
            None if separate => rest.pop_front_if(|next| !is_flag(command, next)),
            None => None,
        };
        out.args.push(match value {
            Some(value) => {
                let mut joined = OsString::from(name + "=");
                joined.push(value);
                joined
            }
            None => name.into(),
        });
    }
    Ok(out)
}

/// Whether `next` is one of `words`, or several with commas between them.
fn all_of(words: &[&str], next: &OsString) -> bool {
    next.to_str().is_some_and(|next| next.split(',').all(|part| words.contains(&part)))
}

/// The argument of `command` that `flag` (with its dashes) names.
fn find<'c>(command: &'c Command, flag: &str) -> Option<&'c Arg> {
    let shorts = |arg: &Arg| arg.get_short_and_visible_aliases().unwrap_or_default();
    command.get_arguments().find(|arg| match flag.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }
        None => {
            let mut letters = flag.strip_prefix('-').unwrap_or_default().chars();
            let letter = letters.next().filter(|_| letters.next().is_none());
            letter.is_some_and(|letter| shorts(arg).contains(&letter))
        }
    })
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether `next` is a flag, so that the flag before it lacks its value.
fn is_flag(command: &Command, next: &OsString) -> bool {
    let Some(next) = next.to_str() else { return false };
    let in_tables = SHORT.iter().any(|(short, _)| *short == next)
        || IGNORED.iter().any(|(names, ..)| names.contains(&next))
        || REFUSED.iter().any(|(names, _)| names.contains(&next));
    in_tables || find(command, next).is_some()
}

/// `-abc`, but not `--abc`, `-a`, nor a value that clap finds behind its letter (`-n5`, `-n-1`).
fn is_unknown_short(name: &str) -> bool {
    let mut letters = name.chars().skip(1);
    let (first, second) = (letters.next(), letters.next());
    first.is_some_and(char::is_alphabetic) && second.is_some_and(|c| !c.is_numeric() && c != '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::built;

    fn normalised(line: &str) -> Result<Normalised> {
        let args = line.split_whitespace().map(OsString::from);
        normalise(["engine".into(), "run".into()].into_iter().chain(args), &built())
    }

    /// What clap sees behind `engine run`.
    fn seen(line: &str) -> String {
        let args = normalised(line).unwrap().args;
        args[2..].iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_entry_leads_to_a_flag_that_exists_and_is_written_once() {
        let command = built();
        let commands = ["run", "serve", "bench"].map(|name| command.find_subcommand(name).unwrap());
        for (short, long) in SHORT {
            let name = long.split('=').next().unwrap();
            let known = commands.iter().any(|command| find(command, name).is_some());
            assert!(known, "{short} → {long}");
        }
        let names = SHORT.iter().map(|(short, _)| *short);
        let names = names.chain(IGNORED.iter().flat_map(|(names, ..)| names.iter().copied()));
        let names: Vec<_> =
            names.chain(REFUSED.iter().flat_map(|(names, _)| names.iter().copied())).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name} twice");
            assert!(commands.iter().all(|c| find(c, name).is_none()), "{name} is also clap's");
        }
    }

    #[test]
    fn short_spellings_become_long_flags_with_joined_values() {
        assert_eq!(
            seen("-ngl 99 -ctk f32 -n -1 -sys -hello -dev 0 -st -rea off --temp=0"),
            "--n-gpu-layers=99 --cache-type-k=f32 --predict=-1 --system-prompt=-hello --device=0 \
             --single-turn --reasoning=off --temp=0"
        );
        assert_eq!(seen("-n5 -c4096 -p a=b -no-cnv"), "-n5 -c4096 --prompt=a=b --raw");
        assert_eq!(seen("-- -ngl 99"), "-- -ngl 99");
        assert_eq!(seen("-ncmoe 3 -cmoe"), "--experts-host=3 --experts-host=all");
        assert_eq!(seen("-nkvo --no-kv-offload -n 1"), "--kv-host=on --kv-host=on --predict=1");
    }

    #[test]
    fn flash_attention_is_accepted_in_all_its_forms() {
        for line in
            ["-fa -c 8", "-fa 1 -c 8", "-fa on -c 8", "--flash-attn off -c 8", "-fa=on -c 8"]
        {
            assert_eq!(seen(line), "--ctx-size=8", "{line}");
        }
        assert_eq!(normalised("-p hi -fa").unwrap().notices.len(), 1);
    }

    /// A seed user's switches are llama-bench's: 0 or 1 follows, or both.
    #[test]
    fn llama_benchs_switches_take_values() {
        assert_eq!(seen("-nkvo 0,1 -n 1"), "--kv-host=auto,on --predict=1");
        assert_eq!(seen("-nkvo 1"), "--kv-host=on");
        assert_eq!(seen("-mmp 0,1 -fa 0,1 --no-host 0 --progress -lzm x -n 1"), "--predict=1");
        assert_eq!(seen("--mmap -n 1 -fa on,off"), "--predict=1");
    }

    #[test]
    fn ignored_flags_go_with_their_values_and_one_notice_each() {
        let out = normalised("--numa distribute -t 8 --no-mmap -C 0xff -p hi").unwrap();
        assert!(out.notices[2].contains("no second copy"), "{}", out.notices[2]);
        assert_eq!(out.args[2..], ["--prompt=hi"]);
        assert_eq!(out.notices.len(), 4);
        assert!(out.notices[0].starts_with("--numa is ignored: "), "{}", out.notices[0]);
    }

    #[test]
    fn a_flag_is_not_taken_for_the_value_of_another() {
        assert_eq!(seen("-m -p hi"), "--model --prompt=hi");
        assert_eq!(seen("--prompt=-m -n 1"), "--prompt=-m --predict=1");
    }

    #[test]
    fn refused_and_unknown_short_flags_are_usage_errors() {
        for (line, word) in [
            ("-kvo", "tools"),
            ("--kv-offload", "tools"),
            ("-hf a/b", "-m"),
            ("--mmproj x.gguf", "images"),
            ("-np 4", "-np"),
            ("-cram 8192", "-cram"),
            ("-xyz", "-xyz"),
        ] {
            let error = normalised(line).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn without_a_known_subcommand_nothing_changes() {
        let args = ["engine", "what", "-ngl", "99"].map(OsString::from);
        let out = normalise(args.clone(), &built()).unwrap();
        assert_eq!(out, Normalised { args: args.into(), notices: vec![] });
        assert_eq!(normalise([], &built()).unwrap(), Normalised::default());
        let args = ["engine", "-v", "run", "-ngl", "9"].map(OsString::from);
        let out = normalise(args, &built()).unwrap();
        assert_eq!(out.args, ["engine", "-v", "run", "--n-gpu-layers=9"]);
    }
}
