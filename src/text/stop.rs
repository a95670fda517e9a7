//! Stop strings over the text of one sequence (spec/tokenizer.md 3).

/// Text that may be sent after a [`StopMatcher::push`], and whether a stop string ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is surely before any stop string.
    pub text: String,
    /// A stop string was completed; `text` ends right before it.
    pub stopped: bool,
}

/// Finds stop strings however the text is cut into pieces. The one completed first wins (the longest,
/// if several end at the same place), because generation ends there.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text that is a proper prefix of a stop string.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// Watches for `stops`; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of text. After a stop string everything is dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped {
            return StopStep { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        let (end, stopped) = match found.min() {
            Some((_, start)) => (start, true),
            None => (self.held.len() - self.possible_start(), false),
        };
        self.stopped = stopped;
        let kept = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, kept);
        StopStep { text, stopped }
    }

    /// The stop string that was completed.
    pub fn stopped_by(&self) -> Option<&str> {
        let found = self.stops.iter().filter(|stop| self.held.starts_with(stop.as_str()));
        found.map(String::as_str).max_by_key(|stop| stop.len()).filter(|_| self.stopped)
    }

    /// Ends the text: what was held back turned out to be plain text.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if self.stopped { String::new() } else { held }
    }

    /// Length of the longest end of `held` that is a proper prefix of a stop string.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .filter(|&start| self.held.is_char_boundary(start))
            .find(|&start| self.stops.iter().any(|stop| stop.starts_with(&self.held[start..])))
            .map_or(0, |start| self.held.len() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()))
    }

    #[test]
    fn holds_back_only_a_possible_start() {
        let mut stop = matcher(&["END", "\n\n"]);
        let step = |text: &str, stopped| StopStep { text: text.to_owned(), stopped };
        assert_eq!(stop.push("abcE"), step("abc", false));
        assert_eq!(stop.push("N"), step("", false));
        assert_eq!(stop.push("E"), step("EN", false));
        assert_eq!(stop.push("ND tail"), step("", true));
        assert_eq!(stop.push("more"), step("", true));
        assert_eq!(stop.finish(), "");

        let mut stop = matcher(&["END", "\n\n", ""]);
        assert_eq!(stop.push("x\n"), step("x", false));
        assert_eq!(stop.finish(), "\n");
    }

    #[test]
    fn the_first_completed_then_the_longest_wins() {
        assert_eq!(matcher(&["abcd", "bc"]).push("xabcd").text, "xa");
        assert_eq!(matcher(&["bc", "abc"]).push("xabcd").text, "x");
        assert_eq!(matcher(&["é!", "é"]).push("aé!").text, "a");
    }

    /// Text up to the end of the first completed stop string, by looking at every prefix.
    fn expected(text: &str, stops: &[String]) -> (String, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = ending.map(String::len).max() {
                return (text[..end - longest].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn any_cut_equals_a_search_in_the_whole(
            pieces in prop::collection::vec("[abé]{0,5}", 0..10),
            stops in prop::collection::vec("[abé]{1,6}", 0..4),
        ) {
            let mut stop = StopMatcher::new(stops.clone());
            let mut sent = String::new();
            let mut seen = String::new();
            let mut stopped = false;
            for piece in &pieces {
                let step = stop.push(piece);
                sent.push_str(&step.text);
                seen.push_str(piece);
                stopped = step.stopped;
                if !stopped {
                    let held = &seen[sent.len()..];
                    prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)));
                }
            }
            sent.push_str(&stop.finish());
            prop_assert_eq!((sent, stopped), expected(&pieces.concat(), &stops));
        }
    }
}
