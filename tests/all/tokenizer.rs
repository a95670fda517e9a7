//! The tokenizer against stored ids and against Hugging Face's own reading of `tokenizer.json`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use engine::gguf::{Gguf, Strings};
use engine::text::{EncodeOptions, SpecialToken, StreamDecoder, Tokenizer, VocabSource};
use proptest::prelude::*;
use serde_json::Value;

use crate::common::skipped;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const ADD: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the real-size vocabularies are; they may not be copied into this repository.
fn reference() -> Option<PathBuf> {
    let path = root().join("../shared/reference/vocab");
    if !path.is_dir() {
        skipped(format_args!("{} is not there", path.display()));
        return None;
    }
    Some(path)
}

fn source(path: impl AsRef<Path>) -> VocabSource {
    VocabSource::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}

fn tiny_source(name: &str) -> VocabSource {
    source(root().join(format!("tests/fixtures/models/{name}.gguf")))
}

fn tiny() -> &'static Tokenizer {
    static TOKENIZER: LazyLock<Tokenizer> =
        LazyLock::new(|| Tokenizer::new(&tiny_source("tiny-qwen35")).unwrap());
    &TOKENIZER
}

fn ids(json: &Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).unwrap()
}

/// The strings of `NAME.gguf.inp` and the ids of `NAME.gguf.out`.
fn check_stored_ids(dir: &Path, name: &str, source: &VocabSource, count: usize) {
    let tokenizer = Tokenizer::new(source).unwrap().without_nfc();
    let read = |kind| std::fs::read_to_string(dir.join(format!("{name}.gguf.{kind}"))).unwrap();
    let (texts, lines) = (read("inp"), read("out"));
    let texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<_> = lines.split('\n').collect();
    assert_eq!((texts.len(), lines.len()), (count, count));
    for (text, line) in texts.iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&expected, false), **text, "{name}");
    }
}

#[test]
fn real_vocabularies_give_the_stored_ids() {
    let Some(dir) = reference() else { return };

    let mut qwen = source(dir.join("ggml-vocab-qwen35.gguf"));
    check_stored_ids(&dir, "ggml-vocab-qwen35", &qwen, 51);
    qwen.pre = Some("qwen2".into());
    check_stored_ids(&dir, "ggml-vocab-qwen2", &qwen, 47);

    let packed = dir.join("ggml-vocab-llama-bpe.gguf.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(packed).output().unwrap();
    let path = std::env::temp_dir().join(format!("engine-test-{}.gguf", std::process::id()));
    std::fs::write(&path, unpacked.stdout).unwrap();
    let llama = source(&path);
    std::fs::remove_file(&path).unwrap();
    check_stored_ids(&dir, "ggml-vocab-llama-bpe", &llama, 47);

    let llama = Tokenizer::new(&llama).unwrap();
    let bos = llama.vocab().special(SpecialToken::Bos).unwrap();
    assert_eq!(llama.encode("Hello world", ADD).unwrap(), [bos, 9906, 1917]);
    assert_eq!(llama.encode("<|begin_of_text|>Hello", ADD).unwrap(), [bos, 9906]);
}

#[test]
fn qwen35_cases_match() {
    let Some(dir) = reference() else { return };
    let cases = std::fs::read_to_string(dir.join("cases-qwen35.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    assert_eq!(cases.len(), 54);
    let source = source(dir.join("ggml-vocab-qwen35.gguf"));
    let as_is = Tokenizer::new(&source).unwrap().without_nfc();
    let with_nfc = Tokenizer::new(&source).unwrap();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        assert_eq!(as_is.encode(text, PARSE).unwrap(), expected, "{text:?}");
        let plain = case.get("ids_special_as_text").map_or(expected.clone(), ids);
        assert_eq!(as_is.encode(text, PLAIN).unwrap(), plain, "{text:?}");
        let normalized = case.get("ids_after_nfc").map_or(expected.clone(), ids);
        assert_eq!(with_nfc.encode(text, PARSE).unwrap(), normalized, "{text:?}");

        let mut stream = StreamDecoder::new();
        let mut streamed = String::new();
        for (id, hex) in expected.iter().zip(case["pieces_hex"].as_array().unwrap()) {
            let piece = as_is.piece(*id, true);
            let found: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, hex.as_str().unwrap(), "{text:?}");
            streamed += &stream.push(piece);
        }
        streamed += &stream.finish();
        assert_eq!(streamed, text);
    }
}

/// Known-faults: a megabyte in one piece must take well under a second.
#[test]
fn a_megabyte_of_anything_is_fast() {
    let n = 1 << 20;
    let real = reference().map(|dir| source(dir.join("ggml-vocab-qwen35.gguf")));
    let source = real.unwrap_or_else(|| tiny_source("tiny-qwen35"));
    let tokenizer = Tokenizer::new(&source).unwrap();
    for unit in
        ["a", " ", "\n", "1", "!", "é", "的", "e\u{301}", "\u{301}", "\u{1F999}", "aB3/", "    x\n"]
    {
        let text = unit.repeat(n / unit.len());
        let start = Instant::now();
        let ids = tokenizer.encode(&text, PARSE).unwrap();
        let time = start.elapsed();
        println!("{unit:?}: {} tokens in {time:?}", ids.len());
        // Unoptimised builds and a busy machine included; anything quadratic takes minutes.
        assert!(time < Duration::from_secs(10), "{unit:?}: {time:?}");
    }
}

#[test]
fn tiny_models_share_one_vocabulary() {
    for name in ["tiny-qwen35", "tiny-qwen3", "tiny-llama", "tiny-qwen35moe"] {
        let path = root().join(format!("tests/fixtures/expected/{name}.json"));
        let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let source = tiny_source(name);
        assert!(source.chat_template.is_some());
        let tokenizer = Tokenizer::new(&source).unwrap();
        assert_eq!(tokenizer.vocab().len(), 640);
        assert_eq!(tokenizer.vocab().end_ids(), [576, 578]);
        assert!(tokenizer.is_end(578) && !tokenizer.is_end(577) && !tokenizer.is_end(9999));
        assert_eq!(tokenizer.special_text(SpecialToken::Eos), "<|im_end|>");
        assert_eq!(tokenizer.special_text(SpecialToken::Bos), "");
        for prompt in expected["prompts"].as_array().unwrap() {
            if let Some(text) = prompt.get("text") {
                let greedy = tokenizer.decode(&ids(&prompt["greedy"]), true);
                assert_eq!(greedy, prompt["greedy_text"].as_str().unwrap());
                let found = tokenizer.encode(text.as_str().unwrap(), ADD).unwrap();
                assert_eq!(found, ids(&prompt["ids"]));
            }
        }
    }
}

#[test]
fn special_tokens_follow_their_type() {
    let tokenizer = tiny();
    // <|im_end|> is a control token, <think> user-defined, [PAD600] unused.
    assert_eq!(tokenizer.encode("<|im_end|>", PARSE).unwrap(), [578]);
    assert!(!tokenizer.encode("<|im_end|>", PLAIN).unwrap().contains(&578));
    assert_eq!(tokenizer.encode("<think>", PLAIN).unwrap(), [587]);
    assert!(!tokenizer.encode("[PAD600]", PARSE).unwrap().contains(&600));
    assert_eq!(tokenizer.decode(&[578, 587, 600, 9999, u32::MAX], false), "<think>");
    assert_eq!(tokenizer.decode(&[578, 587, 600, 9999], true), "<|im_end|><think>");
}

#[test]
fn nfc_can_be_left_out() {
    let raw = Tokenizer::new(&tiny_source("tiny-qwen35")).unwrap().without_nfc();
    assert_eq!(tiny().encode("e\u{301}", PLAIN).unwrap(), raw.encode("é", PLAIN).unwrap());
    assert_eq!(raw.decode(&raw.encode("e\u{301}", PLAIN).unwrap(), false), "e\u{301}");
}

/// One change to a good vocabulary, and what the error must name.
#[test]
fn wrong_vocabularies_are_refused_by_key() {
    type Change = fn(&mut VocabSource);
    let cases: [(Change, &str); 13] = [
        (|s| s.model = "llama".into(), "tokenizer.ggml.model is \"llama\""),
        (|s| s.pre = None, "no tokenizer.ggml.pre"),
        (|s| s.pre = Some("deepseek".into()), "tokenizer.ggml.pre is \"deepseek\""),
        (|s| s.merges.push(b"ab"), "tokenizer.ggml.merges: merge 320"),
        (|s| s.merges.push(b" b"), "tokenizer.ggml.merges: merge 320"),
        (|s| s.merges.push(b""), "tokenizer.ggml.merges: merge 320"),
        (|s| s.token_types = Some(vec![1; 639]), "tokenizer.ggml.token_type has 639 entries"),
        (|s| s.token_types = Some(vec![7; 640]), "tokenizer.ggml.token_type of token 0 is 7"),
        (|s| s.token_types = Some(vec![6; 640]), "byte token 0"),
        (
            |s| s.special.push((SpecialToken::Bos, 640)),
            "tokenizer.ggml.bos_token_id names token 640",
        ),
        (|s| s.eos_token_ids = vec![640], "tokenizer.ggml.eos_token_ids names token 640"),
        (|s| s.eos_token_ids = vec![-1], "tokenizer.ggml.eos_token_ids names token -1"),
        (|s| s.tokens = Strings::default(), "token_type has 640 entries"),
    ];
    for (change, sentence) in cases {
        let mut source = tiny_source("tiny-qwen35");
        change(&mut source);
        let error = Tokenizer::new(&source).err().unwrap().to_string();
        assert!(error.contains(sentence), "{error}");
    }
    let mut source = tiny_source("tiny-qwen35");
    source.tokens = source.tokens.iter().map(|t| if t == b"a" { b"aa" } else { t }).collect();
    let error = Tokenizer::new(&source).err().unwrap().to_string();
    assert!(error.contains("single byte 0x61"), "{error}");
}

#[test]
fn merges_of_unknown_tokens_are_skipped() {
    let mut source = tiny_source("tiny-qwen35");
    for merge in [&b"a zzzz"[..], b"zzzz a", b"zzzz ", b"\xFF \xFE", b"q q", b"a b c"] {
        source.merges.push(merge);
    }
    let tokenizer = Tokenizer::new(&source).unwrap();
    let text = "skipped merges change nothing";
    assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), tiny().encode(text, PLAIN).unwrap());
}

/// Text with what splits, special tokens and normalisation care about.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z]{1,8}",
        r"[ \t\n\r\u{3000}]{1,4}",
        r"[0-9½Ⅷ٣]{1,4}",
        r"\PC{1,4}",
        r"[\u{300}-\u{310}e가각]{1,3}",
        "'([sStTdDmM]|re|LL|ve)",
        prop::sample::select(vec![
            "<|im_start|>",
            "<|im_end|>",
            "<|im_",
            "<think>",
            "</think>",
            "[PAD600]",
            "<tool_call>",
            "👍🏽",
            "\u{FFFD}",
            "\0",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn equals_hugging_face(text in text()) {
        static ORACLE: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
            let path = root().join("tests/fixtures/tokenizer/tokenizer.json");
            tokenizers::Tokenizer::from_file(path).unwrap()
        });
        let expected = ORACLE.encode(text.as_str(), false).unwrap();
        prop_assert_eq!(tiny().encode(&text, PARSE).unwrap(), expected.get_ids());
    }

    #[test]
    fn text_survives_the_round_trip(text in text(), parse_special: bool) {
        static RAW: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
            ["tiny-qwen35", "tiny-qwen3", "tiny-llama"]
                .map(|name| Tokenizer::new(&tiny_source(name)).unwrap().without_nfc())
                .into()
        });
        for tokenizer in RAW.iter() {
            let options = EncodeOptions { parse_special, add_special: false };
            let ids = tokenizer.encode(&text, options).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, true), text.as_str());
        }
    }

    #[test]
    fn streamed_ids_equal_the_decoded_whole(ids in prop::collection::vec(0u32..660, 0..60), special: bool) {
        let mut stream = StreamDecoder::new();
        let pieces: Vec<&[u8]> = ids.iter().map(|&id| tiny().piece(id, special)).collect();
        let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
        text.push_str(&stream.finish());
        let bytes = pieces.concat();
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        prop_assert_eq!(text, tiny().decode(&ids, special));
    }
}
