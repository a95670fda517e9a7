//! Tokenizer, chat template, streaming decode, stop rules.
