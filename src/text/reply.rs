//! A model's reply apart: thinking, answer and tool calls (spec/tokenizer.md 5.4). The result
//! depends on the text alone, not on how it is cut into pieces.

use serde_json::Value;

use super::tool_call::{self, ParsedCall};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";

/// A part of a reply, in the order of the text. Texts of one kind are to be joined.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyPart {
    /// Thinking.
    Reasoning(String),
    /// The answer.
    Content(String),
    /// A call of a tool, complete.
    Call(ParsedCall),
}

/// What to look for in a reply.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// Thinking is told apart.
    pub thinking: bool,
    /// The prompt has opened the thinking already.
    pub open: bool,
    /// The tools that were offered, a list as in OpenAI's API; without any, calls are plain text.
    pub tools: Option<Value>,
}

/// Whether `prompt`, rendered by a template, leaves the model in the midst of thinking.
pub fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Takes a reply piece by piece.
#[derive(Clone, Debug)]
pub struct ReplyParser {
    state: State,
    tools: Option<Value>,
    /// Text that is not decided on.
    pending: String,
}

/// Where `pending` starts.
#[derive(Clone, Debug, PartialEq)]
enum State {
    /// At the start, where thinking may begin.
    Start,
    /// Before the first character of the thinking that is no newline.
    ReasoningStart,
    Reasoning,
    /// After the thinking: newlines are no content.
    AfterReasoning,
    /// After a call: blanks are no content.
    AfterCall,
    Content,
    /// In a call, behind the blanks before it.
    Call {
        blanks: String,
        tagged: bool,
    },
}

impl ReplyParser {
    /// A parser at the start of a reply.
    pub fn new(options: ReplyOptions) -> Self {
        let state = match options {
            ReplyOptions { thinking: false, .. } => State::Content,
            ReplyOptions { open: true, .. } => State::ReasoningStart,
            _ => State::Start,
        };
        Self { state, tools: options.tools, pending: String::new() }
    }

    /// Takes the next piece; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        self.pending.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the reply; returns what was held back.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        loop {
            while self.step(&mut parts) {}
            let rest = std::mem::take(&mut self.pending);
            match std::mem::replace(&mut self.state, State::Content) {
                State::Start | State::Content => emit(&mut parts, ReplyPart::Content, &rest),
                State::ReasoningStart | State::AfterReasoning | State::AfterCall => {}
                State::Reasoning => match self.forgotten_end(&rest) {
                    Some(at) => {
                        emit(&mut parts, ReplyPart::Reasoning, without_newlines(&rest[..at]));
                        self.pending = rest[at..].to_owned();
                        continue;
                    }
                    None => emit(&mut parts, ReplyPart::Reasoning, without_newlines(&rest)),
                },
                State::Call { blanks, tagged } => {
                    self.end_call(&mut parts, &blanks, tagged, &rest, "")
                }
            }
            return parts;
        }
    }

    /// Decides on the start of `pending`; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let next = match &self.state {
            State::Start => {
                let text = self.pending.trim_start();
                match text.strip_prefix(THINK) {
                    Some(thinking) => {
                        self.pending = thinking.to_owned();
                        State::ReasoningStart
                    }
                    None if THINK.starts_with(text) => return false,
                    None => State::Content,
                }
            }
            State::ReasoningStart => {
                self.skip(|text| text.trim_start_matches('\n'));
                if self.pending.is_empty() {
                    return false;
                }
                State::Reasoning
            }
            State::Reasoning => {
                let Some(end) = self.pending.find(THINK_END) else {
                    self.hold_reasoning(parts);
                    return false;
                };
                emit(parts, ReplyPart::Reasoning, without_newlines(&self.pending[..end]));
                self.pending.drain(..end + THINK_END.len());
                State::AfterReasoning
            }
            State::AfterReasoning => {
                self.skip(|text| text.trim_start_matches('\n'));
                if self.pending.is_empty() {
                    return false;
                }
                State::Content
            }
            State::AfterCall => {
                // A call without its opening tag may still have the closing one.
                self.skip(|text| {
                    let mut text = text.trim_start();
                    while let Some(rest) = text.strip_prefix(CALL_END) {
                        text = rest.trim_start();
                    }
                    text
                });
                if CALL_END.starts_with(self.pending.as_str()) {
                    return false;
                }
                State::Content
            }
            State::Content => match self.find_call() {
                Some((at, tagged)) => {
                    let content = self.pending[..at].trim_end();
                    emit(parts, ReplyPart::Content, content);
                    let blanks = self.pending[content.len()..at].to_owned();
                    self.pending.drain(..at + if tagged { CALL.len() } else { 0 });
                    State::Call { blanks, tagged }
                }
                None => {
                    self.hold_content(parts);
                    return false;
                }
            },
            State::Call { blanks, tagged } => {
                let close = if *tagged { CALL_END } else { FUNCTION_END };
                let Some(end) = self.pending.find(close) else { return false };
                let (blanks, tagged) = (blanks.clone(), *tagged);
                let body: String = self.pending.drain(..end + close.len()).collect();
                self.state = State::Content;
                self.end_call(parts, &blanks, tagged, &body[..end], close);
                return true;
            }
        };
        self.state = next;
        true
    }

    /// A call has ended: emits it, or its text if it is none.
    fn end_call(
        &mut self,
        parts: &mut Vec<ReplyPart>,
        blanks: &str,
        tagged: bool,
        body: &str,
        close: &str,
    ) {
        match tool_call::parse(body, self.tools.as_ref()) {
            Some(calls) => {
                parts.extend(calls.into_iter().map(ReplyPart::Call));
                self.state = State::AfterCall;
            }
            None => {
                let open = if tagged { CALL } else { "" };
                emit(parts, ReplyPart::Content, &[blanks, open, body, close].concat());
            }
        }
    }

    fn skip(&mut self, skipped: impl Fn(&str) -> &str) {
        let rest = skipped(&self.pending).len();
        self.pending.drain(..self.pending.len() - rest);
    }

    /// The first start of a call, and whether it has the outer tag.
    fn find_call(&self) -> Option<(usize, bool)> {
        self.tools.as_ref()?;
        let tagged = self.pending.find(CALL).map(|at| (at, true));
        let bare = self.pending.find(FUNCTION).map(|at| (at, false));
        tagged.into_iter().chain(bare).min()
    }

    /// Where a call begins in unended thinking whose end was forgotten.
    fn forgotten_end(&self, reasoning: &str) -> Option<usize> {
        self.tools.as_ref()?;
        let at = reasoning.find(CALL)?;
        let body = &reasoning[at + CALL.len()..];
        let body = body.split_once(CALL_END).map_or(body, |(body, _)| body);
        tool_call::parse(body, self.tools.as_ref()).map(|_| at)
    }

    /// Emits the thinking that neither a tag nor the end can change.
    fn hold_reasoning(&mut self, parts: &mut Vec<ReplyPart>) {
        let mut end = self.pending.len() - possible_tag(&self.pending, THINK_END);
        if self.tools.is_some() {
            let call = self.pending.find(CALL);
            end = end.min(call.unwrap_or(self.pending.len() - possible_tag(&self.pending, CALL)));
        }
        let text = without_newlines(&self.pending[..end]);
        emit(parts, ReplyPart::Reasoning, text);
        self.pending.drain(..text.len());
    }

    /// Emits the content before what may become a call, and the blanks before it.
    fn hold_content(&mut self, parts: &mut Vec<ReplyPart>) {
        let mut text = self.pending.as_str();
        if self.tools.is_some() {
            let held = possible_tag(text, CALL).max(possible_tag(text, FUNCTION));
            text = text[..text.len() - held].trim_end();
        }
        emit(parts, ReplyPart::Content, text);
        self.pending.drain(..text.len());
    }
}

/// Length of the longest end of `text` that is the start of `tag`.
fn possible_tag(text: &str, tag: &str) -> usize {
    let longest = (1..tag.len()).rev();
    longest.into_iter().find(|n| text.ends_with(&tag[..*n])).unwrap_or(0)
}

fn without_newlines(text: &str) -> &str {
    text.trim_end_matches('\n')
}

fn emit(parts: &mut Vec<ReplyPart>, part: fn(String) -> ReplyPart, text: &str) {
    if !text.is_empty() {
        parts.push(part(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn tools() -> Value {
        let properties = json!({"s": {"type": "string"}, "x": {"type": "integer"}});
        json!([{"type": "function", "function":
            {"name": "f", "parameters": {"type": "object", "properties": properties}}}])
    }

    fn parser(open: bool, tools: Option<Value>) -> ReplyParser {
        ReplyParser::new(ReplyOptions { thinking: true, open, tools })
    }

    /// Joins neighbours of one kind.
    fn joined(parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
        let mut out: Vec<ReplyPart> = Vec::new();
        for part in parts {
            match (out.last_mut(), &part) {
                (Some(ReplyPart::Reasoning(a)), ReplyPart::Reasoning(b))
                | (Some(ReplyPart::Content(a)), ReplyPart::Content(b)) => a.push_str(b),
                _ => out.push(part),
            }
        }
        out
    }

    fn whole(mut parser: ReplyParser, text: &str) -> Vec<ReplyPart> {
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        joined(parts)
    }

    fn reasoning(text: &str) -> ReplyPart {
        ReplyPart::Reasoning(text.into())
    }

    fn content(text: &str) -> ReplyPart {
        ReplyPart::Content(text.into())
    }

    fn call(name: &str, arguments: &str) -> ReplyPart {
        ReplyPart::Call(ParsedCall { name: name.into(), arguments: arguments.into() })
    }

    #[test]
    fn thinking_is_told_apart() {
        let plain = |open, text| whole(parser(open, None), text);
        assert_eq!(plain(true, "\nhm\n\n</think>\n\nYes.\n"), [reasoning("hm"), content("Yes.\n")]);
        assert_eq!(plain(false, " <think>hm</think>Yes"), [reasoning("hm"), content("Yes")]);
        assert_eq!(plain(false, "a <think>b</think>"), [content("a <think>b</think>")]);
        assert_eq!(plain(true, "still at it"), [reasoning("still at it")]);
        assert_eq!(plain(true, "</think>\n\n"), []);
        assert_eq!(plain(false, "  x"), [content("  x")]);
        let raw = ReplyParser::new(ReplyOptions::default());
        assert_eq!(whole(raw, "<think>a</think>b"), [content("<think>a</think>b")]);
    }

    #[test]
    fn calls_are_parsed_in_both_forms() {
        let with = |text| whole(parser(false, Some(tools())), text);
        let json = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n";
        assert_eq!(with(json), [content("Let me see."), call("f", r#"{"x":1}"#)]);
        let xml = "<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n<parameter=x>\n2\n\
                   </parameter>\n</function>\n</tool_call>";
        let f = call("f", r#"{"s":"1","x":2}"#);
        assert_eq!(with(xml), std::slice::from_ref(&f));
        let twice = format!("{xml}\n{xml} and more");
        assert_eq!(with(&twice), [f.clone(), f.clone(), content("and more")]);
        let bare = xml.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
        assert_eq!(with(&bare), std::slice::from_ref(&f));
        assert_eq!(with(xml.trim_end_matches("</tool_call>")), std::slice::from_ref(&f), "cut off");
        assert_eq!(with(&xml.replace("<tool_call>\n", "")), [f], "only the opening tag is missing");
    }

    #[test]
    fn what_is_no_call_stays_text() {
        let with = |text| whole(parser(false, Some(tools())), text);
        for text in ["<tool_call>\n</tool_call>", "a\n<tool_call>{\"name\":</tool_call> b", "<tool"]
        {
            assert_eq!(with(text), [content(text)]);
        }
        let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
        assert_eq!(whole(parser(false, None), call), [content(call)], "without tools");
    }

    #[test]
    fn a_call_in_thinking_counts_only_if_the_end_was_forgotten() {
        let block = "<tool_call>{\"name\": \"f\"}</tool_call>";
        let with = |text: &str| whole(parser(true, Some(tools())), text);
        assert_eq!(with(&format!("hm\n{block}")), [reasoning("hm"), call("f", "{}")]);
        let ended = format!("hm\n{block} or so</think>Yes");
        assert_eq!(with(&ended), [reasoning(&format!("hm\n{block} or so")), content("Yes")]);
        assert_eq!(with("hm <tool_call>?"), [reasoning("hm <tool_call>?")]);
    }

    fn text() -> impl Strategy<Value = String> {
        let fragments = vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=s>",
            "<parameter=x>",
            "</parameter>",
            "{\"name\": \"f\"}",
            "\n",
            "\n\n",
            " ",
            "é",
            "12",
            "<",
            "</",
            "<tool",
            "text",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1]}}\n</tool_call>",
        ];
        prop::collection::vec(prop::sample::select(fragments), 0..14).prop_map(|all| all.concat())
    }

    proptest! {
        #[test]
        fn the_parts_do_not_depend_on_the_cuts(
            text in text(),
            open in any::<bool>(),
            offered in any::<bool>(),
            cuts in prop::collection::vec(1..6usize, 1..8),
        ) {
            let parser = parser(open, offered.then(tools));
            let expected = whole(parser.clone(), &text);
            let mut stream = parser;
            let mut parts = Vec::new();
            let characters: Vec<char> = text.chars().collect();
            let mut rest = characters.as_slice();
            for size in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                parts.extend(stream.push(&piece.iter().collect::<String>()));
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            parts.extend(stream.finish());
            for part in &parts {
                if let ReplyPart::Call(call) = part {
                    prop_assert!(serde_json::from_str::<Value>(&call.arguments).unwrap().is_object());
                }
            }
            prop_assert_eq!(joined(parts), expected);
        }
    }
}
