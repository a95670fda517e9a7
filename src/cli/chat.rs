//! A conversation in the terminal (spec/cli-and-server.md 1).

use std::io::{self, BufRead, IsTerminal};

use engine::{
    Error, Result,
    sequence::{Checkpoint, Sequence},
    text::{Message, ReplyPart, opens_thinking},
};

use super::{
    output, report,
    session::{self, Session},
};

const HELP: &str = "/bye or Ctrl-D ends, /clear forgets the conversation, \"\"\" starts and ends a \
                    message of several lines, Ctrl-C stops an answer";

/// Talks until the user ends it, or for one turn if `single`.
pub(super) fn converse(
    session: &mut Session,
    system: Option<String>,
    first: Option<String>,
    single: bool,
) -> Result<()> {
    let terminal = io::stdin().is_terminal();
    if terminal {
        output::note(HELP);
    }
    let mut chat = Conversation::new(session, system);
    let mut first = first;
    loop {
        let input = match first.take() {
            Some(text) => Input::Message(text),
            None => {
                if terminal {
                    output::prompt("> ");
                }
                read(&mut io::stdin().lock())?
            }
        };
        match input {
            Input::End => {
                if terminal {
                    output::note("");
                }
                return Ok(());
            }
            Input::Clear => chat.clear(),
            Input::Help => output::note(HELP),
            Input::Message(text) if text.trim().is_empty() => continue,
            Input::Message(text) => match chat.turn(text) {
                Ok(()) if single => return Ok(()),
                Ok(()) => {}
                // What one message has caused does not end the conversation, unless nobody is
                // there to write another.
                Err(error) if passes(&error) && terminal && !single => {
                    output::note(format_args!("error: {error}"));
                }
                Err(error) => return Err(error),
            },
        }
    }
}

/// Whether an error is of one message: the engine can take another.
fn passes(error: &Error) -> bool {
    matches!(error, Error::Context(_) | Error::Template(_) | Error::Sampling(_) | Error::Memory(_))
}

/// What the user typed.
#[derive(Debug, PartialEq)]
enum Input {
    Message(String),
    Clear,
    Help,
    End,
}

const QUOTES: &str = "\"\"\"";

/// Reads a message or command: a line, or the lines between two `"""`.
fn read(from: &mut impl BufRead) -> Result<Input> {
    let mut line = String::new();
    let mut more = |line: &mut String| from.read_line(line).map_err(|e| Error::io("stdin", e));
    if more(&mut line)? == 0 {
        return Ok(Input::End);
    }
    let text = line.trim();
    let Some(start) = text.strip_prefix(QUOTES) else {
        return Ok(match text {
            "/bye" | "/exit" => Input::End,
            "/clear" => Input::Clear,
            "/help" | "/?" => Input::Help,
            text => Input::Message(text.to_owned()),
        });
    };
    let mut message = format!("{}\n", start.trim_end());
    while !message.trim_end().ends_with(QUOTES) {
        if more(&mut message)? == 0 {
            break;
        }
    }
    let message = message.trim_end();
    let message = message.strip_suffix(QUOTES).unwrap_or(message);
    Ok(Input::Message(message.trim_matches('\n').to_owned()))
}

/// The messages so far, and the sequence that holds them.
struct Conversation<'s> {
    session: &'s mut Session,
    system: Option<String>,
    messages: Vec<Message>,
    sequence: Option<Sequence>,
    /// The end of the last message of the user. Templates may render earlier answers otherwise
    /// than they were generated (without their thinking): then this is what can be kept.
    checkpoint: Option<Checkpoint>,
}

impl<'s> Conversation<'s> {
    fn new(session: &'s mut Session, system: Option<String>) -> Self {
        let mut chat =
            Self { session, system, messages: Vec::new(), sequence: None, checkpoint: None };
        chat.clear();
        chat
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.messages.extend(self.system.iter().map(|text| Message::new("system", text)));
        self.sequence = None;
        self.checkpoint = None;
    }

    /// One message and its answer. After an error the message is forgotten, and the sequence,
    /// which may be anywhere.
    fn turn(&mut self, text: String) -> Result<()> {
        self.messages.push(Message::new("user", text));
        match self.answer() {
            Ok(message) => {
                self.messages.push(message);
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                self.checkpoint = None;
                Err(error)
            }
        }
    }

    fn answer(&mut self) -> Result<Message> {
        let rendered = self.session.render(&self.messages, true)?;
        let prompt = self.session.encode(&rendered, false)?;
        let mut sequence = self.rewind(&prompt)?;
        let closed = self.session.encode(&self.session.render(&self.messages, false)?, false)?;
        let mark = prompt.starts_with(&closed).then_some(closed.len());
        let open = opens_thinking(&rendered);
        let mut show = self.session.printer(open);
        let done = self.session.complete(&mut sequence, prompt, mark, &mut show)?;
        self.sequence = Some(sequence);
        output::result("\n")?;
        output::note(report::summary(self.session.load, &done));
        let mut parser = session::reply(open);
        let (mut reasoning, mut text) = (None::<String>, String::new());
        for part in parser.push(&done.text).into_iter().chain(parser.finish()) {
            match part {
                ReplyPart::Reasoning(part) => reasoning.get_or_insert_default().push_str(&part),
                ReplyPart::Content(part) => text.push_str(&part),
                ReplyPart::Call(_) => {}
            }
        }
        let message = Message { reasoning_content: reasoning, ..Message::new("assistant", text) };
        self.checkpoint = done.checkpoint.or(self.checkpoint.take());
        Ok(message)
    }

    /// The sequence at the longest point it can be taken to that is a beginning of `prompt`.
    fn rewind(&mut self, prompt: &[u32]) -> Result<Sequence> {
        let engine = &self.session.engine;
        let Some(mut sequence) = self.sequence.take() else { return engine.new_sequence() };
        let held = sequence.tokens();
        if held.len() < prompt.len() && prompt.starts_with(held) {
            return Ok(sequence);
        }
        let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        match &self.checkpoint {
            Some(point) if point.position() <= common && point.position() < prompt.len() => {
                engine.restore(&mut sequence, point)?;
            }
            _ => {
                output::note(format_args!(
                    "the conversation is processed anew: token {common} has changed"
                ));
                engine.clear(&mut sequence);
                self.checkpoint = None;
            }
        }
        Ok(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(typed: &str) -> Vec<Input> {
        let mut typed = typed.as_bytes();
        std::iter::from_fn(|| Some(read(&mut typed).unwrap()).filter(|input| *input != Input::End))
            .collect()
    }

    #[test]
    fn lines_commands_and_blocks_are_read() {
        let message = |text: &str| Input::Message(text.to_owned());
        assert_eq!(
            all("hello\n/clear\n  /clear me \n/help\n\n/bye\nrest"),
            [message("hello"), Input::Clear, message("/clear me"), Input::Help, message("")]
        );
        let blocks = "\"\"\"one\n two\n\nthree\"\"\"\n\"\"\"\n/bye\n\"\"\"\n\"\"\"one line\"\"\"\n\"\"\"cut\noff";
        assert_eq!(
            all(blocks),
            [
                message("one\n two\n\nthree"),
                message("/bye"),
                message("one line"),
                message("cut\noff")
            ]
        );
    }
}
