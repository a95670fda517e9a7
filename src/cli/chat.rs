//! A conversation in the terminal (spec/cli-and-server.md 1).

use std::{
    io::{self, BufRead, IsTerminal},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use engine::{
    Error, Result,
    text::{Message, opens_thinking},
};

use super::{
    interrupt::Interrupt,
    kept::Kept,
    output, report,
    session::{self, Session},
};

const HELP: &str = "/bye or Ctrl-D ends, /clear forgets the conversation, \"\"\" starts and ends a \
                    message of several lines, Ctrl-C stops an answer";

/// Goes on with the conversation that is `kept` until the user ends it, or for one turn if `single`.
pub(super) fn converse(
    session: &mut Session,
    kept: Kept,
    system: Option<String>,
    first: Option<String>,
    single: bool,
) -> Result<()> {
    let mut chat = Conversation::new(session, kept, system);
    let talked = chat.talk(first, single);
    let saved = if chat.changed { chat.kept.save(&chat.session.engine) } else { Ok(()) };
    talked.and(saved)
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

/// What the user types next. Ctrl-C is an end, too: what is kept is saved after it.
fn typed() -> Result<Input> {
    let interrupt = Interrupt::watch();
    let (sender, input) = mpsc::channel();
    thread::spawn(move || sender.send(read(&mut io::stdin().lock())));
    loop {
        match input.recv_timeout(Duration::from_millis(50)) {
            Ok(input) => return input,
            Err(RecvTimeoutError::Timeout) if !interrupt.requested() => {}
            Err(_) => return Ok(Input::End),
        }
    }
}

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

/// The messages so far, and the history that holds them.
struct Conversation<'s> {
    session: &'s mut Session,
    system: Option<String>,
    kept: Kept,
    /// Since it was loaded.
    changed: bool,
}

impl<'s> Conversation<'s> {
    fn new(session: &'s mut Session, kept: Kept, system: Option<String>) -> Self {
        let mut chat = Self { session, system, kept, changed: false };
        match chat.kept.messages.len() {
            0 => chat.kept.history.clear(&chat.session.engine),
            n => output::note(format_args!("the conversation goes on after {n} messages")),
        }
        chat.instruct();
        chat
    }

    /// Puts the system message that is asked for in the place of the one that was kept.
    fn instruct(&mut self) {
        let Some(text) = &self.system else { return };
        let messages = &mut self.kept.messages;
        let kept = messages.first().is_some_and(|message| message.role == "system");
        messages.splice(..usize::from(kept), [Message::new("system", text)]);
    }

    fn talk(&mut self, mut first: Option<String>, single: bool) -> Result<()> {
        let terminal = io::stdin().is_terminal();
        if terminal {
            output::note(HELP);
        }
        loop {
            let input = match first.take() {
                Some(text) => Input::Message(text),
                None => {
                    if terminal {
                        output::prompt("> ");
                    }
                    typed()?
                }
            };
            match input {
                Input::End => {
                    if terminal {
                        output::note("");
                    }
                    return Ok(());
                }
                Input::Clear => self.clear(),
                Input::Help => output::note(HELP),
                Input::Message(text) if text.trim().is_empty() => continue,
                Input::Message(text) => match self.turn(text) {
                    Ok(()) if single => return Ok(()),
                    Ok(()) => {}
                    // What one message has caused does not end the conversation, unless nobody
                    // is there to write another.
                    Err(error) if passes(&error) && terminal && !single => {
                        output::note(format_args!("error: {error}"));
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }

    fn clear(&mut self) {
        self.kept.messages.clear();
        self.instruct();
        self.kept.history.clear(&self.session.engine);
        self.changed = true;
    }

    /// One message and its answer. After an error the message is forgotten.
    fn turn(&mut self, text: String) -> Result<()> {
        self.changed = true;
        self.kept.messages.push(Message::new("user", text));
        match self.answer() {
            Ok(message) => {
                self.kept.messages.push(message);
                Ok(())
            }
            Err(error) => {
                self.kept.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&mut self) -> Result<Message> {
        let rendered = self.session.render(&self.kept.messages, true)?;
        let prompt = self.session.encode(&rendered, false)?;
        let held = self.kept.history.tokens().len();
        let open = opens_thinking(&rendered);
        let mut show = self.session.printer(open);
        let done = self.session.complete(&mut self.kept.history, prompt, &mut show)?;
        output::result("\n")?;
        if held > 0 && done.reused == 0 {
            output::note("the conversation was processed anew: its beginning has changed");
        }
        output::note(report::summary(self.session.load, &done));
        Ok(session::answer(&done.text, open))
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
