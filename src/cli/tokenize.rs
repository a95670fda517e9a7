//! `engine tokenize` and `engine detokenize`: text to ids and back, for looking at a vocabulary.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use engine::gguf::Gguf;
use engine::text::{EncodeOptions, Tokenizer, VocabSource};
use engine::{Error, Result};
use serde::Serialize;

use super::output;

/// Flags of `engine tokenize`.
#[derive(Args, Debug)]
pub(super) struct TokenizeArgs {
    /// The model file
    #[arg(short, long)]
    model: PathBuf,
    /// The text
    #[arg(short, long)]
    prompt: String,
    /// Put BOS first and EOS last where the model asks for it
    #[arg(long)]
    add_special: bool,
    /// Take control tokens in the text as plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Print a line of ids only
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags of `engine detokenize`.
#[derive(Args, Debug)]
pub(super) struct DetokenizeArgs {
    /// The model file
    #[arg(short, long)]
    model: PathBuf,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Print control tokens too
    #[arg(long)]
    special: bool,
}

#[derive(Serialize)]
struct Token {
    id: u32,
    /// Lossy where the token is a part of a character.
    piece: String,
}

pub(super) fn tokenize(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = open(&args.model)?;
    let options =
        EncodeOptions { add_special: args.add_special, parse_special: !args.no_parse_special };
    let ids = tokenizer.encode(&args.prompt, options)?;
    if args.ids {
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        return output::result(format_args!("{}\n", ids.join(",")));
    }
    let piece = |&id: &u32| {
        let piece = String::from_utf8_lossy(tokenizer.piece(id, true)).into_owned();
        Token { id, piece }
    };
    let tokens: Vec<_> = ids.iter().map(piece).collect();
    if args.json {
        return output::json(&serde_json::json!({ "tokens": tokens }));
    }
    let mut lines = String::new();
    for Token { id, piece } in tokens {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{id:7}  {piece:?}");
    }
    output::result(lines)
}

pub(super) fn detokenize(args: &DetokenizeArgs) -> Result<()> {
    let tokenizer = open(&args.model)?;
    let count = tokenizer.vocab().len();
    if let Some(id) = args.tokens.iter().find(|&&id| id as usize >= count) {
        return Err(Error::Usage(format!(
            "--tokens: there is no token {id}, the vocabulary has {count}"
        )));
    }
    output::result(format_args!("{}\n", tokenizer.decode(&args.tokens, args.special)))
}

fn open(model: &PathBuf) -> Result<Tokenizer> {
    Tokenizer::new(&VocabSource::from_gguf(&Gguf::open(model)?)?)
}
