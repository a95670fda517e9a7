//! Which tokens may come next, where an answer is held to a [`Grammar`]; by the crate `llguidance`.

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie},
};

use super::{EncodeOptions, Grammar, TokenType, Tokenizer};
use crate::{Error, Result};

/// Longest token that grammars use, in bytes: the trie's depth is bounded.
const LONGEST: usize = 512;
/// Longest grammar that is compiled, in bytes.
const MAX_SOURCE: usize = 256 << 10;

/// Compiles grammars for one vocabulary.
pub struct Constraints {
    factory: ParserFactory,
    think: Option<u32>,
    think_end: Option<u32>,
}

/// How an answer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// With what the grammar says.
    Never,
    /// With thinking, if the model likes.
    Possible,
    /// In the midst of thinking.
    Open,
}

/// The state of one answer.
pub struct Constraint {
    matcher: Matcher,
    phase: Phase,
    think: Option<u32>,
    think_end: Option<u32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// Thinking may begin here.
    Start,
    /// Nothing is held to the grammar.
    Thinking,
    Answer,
}

impl Constraints {
    /// Prepares the vocabulary of `tokenizer`, which takes some tenths of a second.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for a vocabulary that `llguidance` does not take.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let vocab = tokenizer.vocab();
        let fault = |e: &dyn std::fmt::Display| Error::Tokenizer(format!("grammars: {e}"));
        let word = |id: u32| {
            let piece = tokenizer.piece(id, true);
            match vocab.token_type(id) {
                _ if piece.len() > LONGEST => Vec::new(),
                Some(TokenType::Control | TokenType::Unknown) => {
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat()
                }
                _ => piece.to_vec(),
            }
        };
        let words: Vec<_> = (0..vocab.len() as u32).map(word).collect();
        let ends = vocab.end_ids();
        let first = *ends.first().ok_or_else(|| fault(&"no token ends generation"))?;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
        let env = ApproximateTokEnv::new(trie.with_eos_tokens(ends));
        let mut factory =
            ParserFactory::new_simple(&(Arc::new(env) as _)).map_err(|e| fault(&e))?;
        factory.quiet().limits_mut().verbose_errors = false;
        let options = EncodeOptions { add_special: false, parse_special: true };
        let single = |text| match tokenizer.encode(text, options).ok()?.as_slice() {
            [id] => Some(*id),
            _ => None,
        };
        Ok(Self { factory, think: single("<think>"), think_end: single("</think>") })
    }

    /// The constraint at an answer's start. Work and memory are bounded by the compiler's limits.
    ///
    /// # Errors
    /// [`Error::Usage`] with what is wrong with the grammar.
    pub fn compile(&self, grammar: &Grammar, thinking: Thinking) -> Result<Constraint> {
        let phase = match (thinking, self.think, self.think_end) {
            (Thinking::Open, _, Some(_)) => Phase::Thinking,
            (Thinking::Possible, Some(_), Some(_)) => Phase::Start,
            _ => Phase::Answer,
        };
        let text = grammar.text(phase != Phase::Answer);
        if text.len() > MAX_SOURCE {
            let fault = format!("has {} bytes, more than the {MAX_SOURCE} allowed", text.len());
            return Err(Error::Usage(fault));
        }
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(text));
        let parser = parser.map_err(|e| Error::Usage(format!("does not compile: {}", line(&e))))?;
        let matcher = Matcher::new(Ok(parser));
        Ok(Constraint { matcher, phase, think: self.think, think_end: self.think_end })
    }
}

impl Constraint {
    /// Whether `token` may come next.
    ///
    /// # Errors
    /// [`Error::Sampling`] if the grammar needs more work at this point than one step may do.
    pub fn allows(&mut self, token: u32) -> Result<bool> {
        match self.phase {
            Phase::Thinking => Ok(true),
            Phase::Start if Some(token) == self.think => Ok(true),
            _ => {
                let mask = self.mask()?;
                // A model may have more logits than there are tokens.
                Ok((token as usize) < mask.len() && mask.is_allowed(token))
            }
        }
    }

    /// Rules tokens out: their logits become minus infinity.
    ///
    /// # Errors
    /// As [`Self::allows`].
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        if self.phase == Phase::Thinking {
            return Ok(());
        }
        let mask = self.mask()?;
        let think = self.think.filter(|_| self.phase == Phase::Start);
        for (id, logit) in (0..).zip(logits) {
            if (id as usize >= mask.len() || !mask.is_allowed(id)) && Some(id) != think {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen; true if the answer is complete with it.
    pub fn accept(&mut self, token: u32) -> bool {
        match self.phase {
            Phase::Thinking => {
                if Some(token) == self.think_end {
                    self.phase = Phase::Answer;
                }
                false
            }
            Phase::Start if Some(token) == self.think => {
                self.phase = Phase::Thinking;
                false
            }
            _ => {
                self.phase = Phase::Answer;
                // What goes wrong here is told when the next token is asked for.
                self.matcher.consume_token(token).is_ok() && self.matcher.is_stopped()
            }
        }
    }

    fn mask(&mut self) -> Result<llguidance::toktrie::SimpleVob> {
        let mask = self.matcher.compute_mask_or_eos();
        mask.map_err(|e| Error::Sampling(format!("the grammar cannot go on: {}", line(&e))))
    }
}

impl Clone for Constraint {
    /// An independent copy.
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), ..*self }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

/// An error's first line that says something.
fn line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::text::{CallForm, ReplyOptions, ReplyParser, ReplyPart, VocabSource};

    fn tokenizer() -> Tokenizer {
        let gguf = crate::demo::open().unwrap();
        Tokenizer::new(&VocabSource::from_gguf(&gguf).unwrap()).unwrap()
    }

    /// Chooses among the allowed tokens as `pick` says, the end as soon as it may come.
    fn walk(
        tokenizer: &Tokenizer,
        constraint: &mut Constraint,
        mut pick: impl FnMut() -> usize,
    ) -> String {
        let mut ids = Vec::new();
        for _ in 0..400 {
            let mut logits = vec![0.0; tokenizer.vocab().len()];
            constraint.apply(&mut logits).unwrap();
            let allowed: Vec<u32> =
                (0..).zip(logits).filter(|(_, l)| *l == 0.0).map(|(id, _)| id).collect();
            let end = allowed.iter().find(|id| tokenizer.is_end(**id));
            let id = *end.unwrap_or_else(|| &allowed[pick() % allowed.len()]);
            assert!(constraint.allows(id).unwrap());
            if tokenizer.is_end(id) {
                break;
            }
            ids.push(id);
            if constraint.accept(id) {
                break;
            }
        }
        tokenizer.decode(&ids, true)
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "b\"c"]},
                "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 2},
                "note": {"type": "string", "maxLength": 5},
            },
            "required": ["kind", "sizes", "note"],
            "additionalProperties": false,
            "$defs": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn whatever_is_chosen_fits_the_schema(picks in prop::collection::vec(any::<usize>(), 64)) {
            let tokenizer = tokenizer();
            let constraints = Constraints::new(&tokenizer).unwrap();
            let mut constraint =
                constraints.compile(&Grammar::json(&schema()).unwrap(), Thinking::Never).unwrap();
            let mut picks = picks.into_iter().cycle();
            let text = walk(&tokenizer, &mut constraint, || picks.next().unwrap());
            let value: Value = serde_json::from_str(&text).unwrap();
            prop_assert!(["a", "b\"c"].contains(&value["kind"].as_str().unwrap()));
            let sizes = value["sizes"].as_array().unwrap();
            prop_assert!(sizes.len() <= 2 && sizes.iter().all(|s| s.as_u64().unwrap() < 100));
            prop_assert!(value["note"].as_str().unwrap().chars().count() <= 5);
            prop_assert_eq!(value.as_object().unwrap().len(), 3);
        }
    }

    #[test]
    fn calls_are_read_back_with_their_arguments() {
        let tokenizer = tokenizer();
        let constraints = Constraints::new(&tokenizer).unwrap();
        let size = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}},
            "required": ["n"], "additionalProperties": false, "$defs": {"n": {"const": 7}}});
        let tools = json!([
            {"type": "function", "function": {"name": "f", "parameters": size}},
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object",
                "properties": {}, "additionalProperties": false}}},
        ]);
        let names = [(Some("f"), "f"), (Some("g"), "g"), (None, "fg")];
        let forms = [CallForm::Json, CallForm::Tags];
        for ((name, expected), form) in names.into_iter().flat_map(|n| forms.map(|form| (n, form)))
        {
            let grammar = Grammar::calls(&tools, name, false, form).unwrap();
            let mut constraint = constraints.compile(&grammar, Thinking::Never).unwrap();
            let text = walk(&tokenizer, &mut constraint, || 3);
            let options = ReplyOptions { tools: Some(tools.clone()), ..Default::default() };
            let mut parser = ReplyParser::new(options);
            let mut parts = parser.push(&text);
            parts.extend(parser.finish());
            let [ReplyPart::Call(call)] = parts.as_slice() else { panic!("{text}: {parts:?}") };
            assert!(expected.contains(&call.name));
            assert_eq!(call.arguments, if call.name == "f" { "{\"n\":7}" } else { "{}" });
        }
        assert!(Grammar::calls(&tools, Some("h"), true, CallForm::Json).is_err());
    }

    /// Text as it is, in the tags that the model has learnt; JSON for what is no text.
    #[test]
    fn calls_in_tags_hold_text_choices_and_json() {
        let tokenizer = tokenizer();
        let constraints = Constraints::new(&tokenizer).unwrap();
        let parameters = json!({"type": "object", "required": ["path", "mode", "sizes"], "properties": {
            "path": {"type": "string", "description": "a file"},
            "mode": {"type": "string", "enum": ["read", "write"]},
            "deep": {"type": "boolean"},
            "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "minItems": 1},
        }, "$defs": {"size": {"type": "integer", "minimum": 0, "maximum": 99}}});
        let tools =
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let grammar = Grammar::calls(&tools, None, false, CallForm::Tags).unwrap();
        let call = |path: &str, mode: &str, rest: &str| {
            format!(
                "<tool_call>\n<function=f>\n<parameter=path>\n{path}\n</parameter>\n\
                 <parameter=mode>\n{mode}\n</parameter>\n{rest}</function>\n</tool_call>"
            )
        };
        let sizes = "<parameter=sizes>\n[1, 2]\n</parameter>\n";
        let deep = format!("<parameter=deep>\ntrue\n</parameter>\n{sizes}");
        let options = EncodeOptions { add_special: false, parse_special: true };
        let takes = |text: &str| {
            let mut constraint = constraints.compile(&grammar, Thinking::Never).unwrap();
            let ids = tokenizer.encode(text, options).unwrap();
            ids.iter().all(|id| {
                let allowed = constraint.allows(*id).unwrap();
                constraint.accept(*id);
                allowed
            })
        };
        for text in [
            call("a \"b\"\n</div>\n", "read", sizes),
            call("", "write", &deep),
            call("a <parameter=b>", "read", sizes),
        ] {
            assert!(takes(&text), "{text}");
        }
        for text in [
            call("a", "append", sizes),
            call("a", "read", ""),
            call("a", "read", "<parameter=sizes>\n[100]\n</parameter>\n"),
            call("a</parameter>b", "read", sizes),
            call("<parameter=b>", "read", sizes),
            call("a\n<parameter=mode>\nread", "read", sizes),
        ] {
            assert!(!takes(&text), "{text}");
        }
        // What tags cannot hold is called in JSON.
        let pattern =
            json!({"type": "object", "properties": {"s": {"type": "string", "pattern": "a+"}}});
        for parameters in [pattern, json!({"type": "object"}), Value::Null] {
            let tools =
                json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
            let [tags, json] = [CallForm::Tags, CallForm::Json]
                .map(|form| Grammar::calls(&tools, None, false, form).unwrap());
            assert_eq!(tags, json);
        }
    }

    #[test]
    fn thinking_is_free_and_the_answer_after_it_is_not() {
        let tokenizer = tokenizer();
        let constraints = Constraints::new(&tokenizer).unwrap();
        let options = EncodeOptions { add_special: false, parse_special: true };
        let ids = |text: &str| tokenizer.encode(text, options).unwrap();
        let grammar = Grammar::json(&json!({"const": 1})).unwrap();
        for (thinking, text) in [
            (Thinking::Never, "1"),
            (Thinking::Possible, "1"),
            (Thinking::Possible, "<think>\nall sorts</think>\n\n1"),
            (Thinking::Open, "1 or 2?</think>1"),
        ] {
            let mut constraint = constraints.compile(&grammar, thinking).unwrap();
            let ids = ids(text);
            for (i, id) in ids.iter().enumerate() {
                assert!(constraint.allows(*id).unwrap(), "{text}: token {i}");
                assert_eq!(constraint.accept(*id), i + 1 == ids.len(), "{text}: token {i}");
            }
        }
        let mut constraint = constraints.compile(&grammar, Thinking::Never).unwrap();
        assert!(!constraint.allows(ids("<think>")[0]).unwrap());
        assert!(!constraint.allows(u32::MAX).unwrap(), "no token of the vocabulary");
        assert!(!constraint.clone().allows(ids("2")[0]).unwrap());
    }

    #[test]
    fn what_does_not_compile_is_refused_in_a_sentence_and_soon() {
        let tokenizer = tokenizer();
        let constraints = Constraints::new(&tokenizer).unwrap();
        let wide: Vec<Value> = (0..40).map(|i| json!({"type": "object",
            "properties": {format!("p{i}"): {"type": "string", "pattern": format!("(a|b){{{i}}}")}}}))
            .collect();
        let either = json!({"anyOf": wide});
        let deep =
            (0..120).fold(json!({"type": "string"}), |s, _| json!({"type": "array", "items": s}));
        for (grammar, fault) in [
            (Grammar::json(&json!({"type": "sting"})), "sting"),
            (Grammar::json(&json!({"$ref": "#/$defs/none"})), "none"),
            (Grammar::lark("start: nothing"), "nothing"),
            (Grammar::lark(&"x".repeat(300 << 10)), "bytes"),
        ] {
            let error = constraints.compile(&grammar.unwrap(), Thinking::Never).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(fault) && text.lines().count() == 1 && text.len() < 400,
                "{text}"
            );
        }
        // What is large may compile or not; it must not take long, nor must its first step.
        let pattern = json!({"type": "string", "pattern": "(a{1000}){1000}"});
        let product = json!({"allOf": vec![either; 5]});
        for (large, name) in [(deep, "deep"), (pattern, "pattern"), (product, "product")] {
            let start = std::time::Instant::now();
            let compiled = constraints.compile(&Grammar::json(&large).unwrap(), Thinking::Never);
            let _ = compiled.map(|mut constraint| constraint.allows(0));
            assert!(start.elapsed().as_secs() < 5, "{name}: {:?}", start.elapsed());
        }
        assert!(Grammar::lark("root ::= \"a\"").unwrap_err().to_string().contains("GBNF"));
        assert!(Grammar::json(&json!([1])).is_err());
    }
}
