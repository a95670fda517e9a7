//! A prompt of an exact number of the demo model's tokens with a fact to be found in it, like those
//! of `engine selftest`, for `engine run --raw -f`:
//!
//! ```sh
//! cargo run --release --example needle_prompt -- 1048576 -o million.txt
//! engine run -f million.txt --raw -c 1049600 --kv-host on --kv-stats -n 20 --temp 0 --json
//! ```
//!
//! The right answer is `The pass key of Paula is 66088.`

use std::{fs, path::PathBuf};

use clap::Parser;
use engine::{
    Error, Result, demo,
    text::{EncodeOptions, Tokenizer, VocabSource},
};

const FILLER: &str = include_str!("../models/selftest-filler.txt");
const FACT: &str = "The pass key of Paula is 66088.";
const QUESTION: &str =
    "<|im_start|>user\nTell me the pass key of Paula.<|im_end|>\n<|im_start|>assistant\n";
/// Facts of the same forms.
const OTHERS: [&str; 4] = [
    "The bird of Una is called Max.",
    "The pass key of Hugo is 58874.",
    "The small chair is kept in the old library.",
    "The secret number of Nina is 10335.",
];
/// What makes up the number: a token a word.
const WORD: &str = " the";

/// A prompt of an exact number of tokens.
#[derive(Parser)]
struct Arguments {
    /// Tokens.
    tokens: usize,
    /// Where the fact is, as a share of the text.
    #[arg(long, default_value_t = 0.31)]
    at: f64,
    /// The file to write.
    #[arg(short, long)]
    output: PathBuf,
}

fn main() -> Result<()> {
    let args = Arguments::parse();
    let tokenizer = Tokenizer::new(&VocabSource::from_gguf(&demo::open()?)?)?;
    // As `run --raw` does.
    let options = EncodeOptions { add_special: true, parse_special: true };
    let count = |text: &str| tokenizer.encode(text, options).map(|ids| ids.len());
    let lines = filler(&tokenizer, args.tokens)?;
    let at = |share: f64| (lines.len() as f64 * share) as usize;
    let text = |words: usize| {
        let mut text = String::from("Here is") + &WORD.repeat(words) + " text.";
        for (i, line) in lines.iter().enumerate() {
            let others = OTHERS.iter().enumerate().filter(|(k, _)| at(0.2 + 0.2 * *k as f64) == i);
            let fact = (at(args.at) == i).then_some(FACT);
            for part in others.map(|(_, other)| *other).chain(fact).chain([*line]) {
                text.push(' ');
                text.push_str(part);
            }
        }
        text + QUESTION
    };
    let words = args.tokens.checked_sub(count(&text(0))?);
    let text = text(words.ok_or_else(|| Error::Usage("that is too few tokens".into()))?);
    let (found, before) = (count(&text)?, text.find(FACT).map_or(Ok(0), |at| count(&text[..at]))?);
    if found != args.tokens || before == 0 {
        return Err(Error::Usage(format!("{found} tokens came about instead")));
    }
    fs::write(&args.output, text).map_err(|e| Error::io(&args.output, e))?;
    println!("{found} tokens; the fact is after {before} of them: {FACT}");
    Ok(())
}

/// Lines of somewhat fewer tokens than wanted.
fn filler(tokenizer: &Tokenizer, tokens: usize) -> Result<Vec<&'static str>> {
    const REST: usize = 200;
    let (mut lines, mut sum) = (Vec::new(), REST);
    for line in FILLER.lines().cycle() {
        let options = EncodeOptions { add_special: false, parse_special: true };
        sum += tokenizer.encode(&format!(" {line}"), options)?.len();
        if sum > tokens {
            break;
        }
        lines.push(line);
    }
    Ok(lines)
}
