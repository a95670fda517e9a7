//! What a session belongs to.

use serde::{Deserialize, Serialize};

/// The model and the settings that its state depends on, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(Vec<(String, String)>);

impl Identity {
    /// With one more property.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.into(), value.to_string()));
        self
    }

    /// How `saved` differs from this, in words: the first property that does.
    pub(crate) fn difference(&self, saved: &Self) -> Option<String> {
        let of = |all: &Self, name: &str| {
            let found = all.0.iter().find(|(other, _)| other == name);
            found.map_or_else(|| "none".into(), |(_, value)| value.clone())
        };
        let names = self.0.iter().chain(&saved.0).map(|(name, _)| name.as_str());
        let mut pairs = names.map(|name| (name, of(saved, name), of(self, name)));
        let (name, theirs, ours) = pairs.find(|(_, theirs, ours)| theirs != ours)?;
        Some(format!("was saved with another {name}: {theirs}, where this one is {ours}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let of = |model: &str, keys: &str| {
            Identity::default().with("model", model).with("type of keys", keys)
        };
        let ours = of("a", "f16");
        assert_eq!(ours.difference(&of("a", "f16")), None);
        let text = ours.difference(&of("a", "q8_0")).unwrap();
        assert_eq!(text, "was saved with another type of keys: q8_0, where this one is f16");
        assert!(ours.difference(&of("b", "q8_0")).unwrap().contains("another model: b"));
        let less = Identity::default().with("model", "a");
        assert!(ours.difference(&less).unwrap().contains("none, where this one is f16"));
        assert!(less.difference(&ours).unwrap().contains("f16, where this one is none"));
    }
}
