//! A shader file with the choices made for it.

use crate::{Error, Result};
use std::{collections::BTreeMap, fmt, sync::LazyLock};

/// What a name stands for in `#if`, `#import` and `$NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A switch that is on.
    On,
    /// One of several texts, e.g. a block format.
    Word(&'static str),
    /// A number, free within what the kernel states.
    Number(u32),
}

/// A shader file and its choices; the key of the kernel cache.
///
/// Written as `file flag choice=word NUMBER=64` in `shaders/variants.txt`; there `flag?` stands for
/// with and without, `choice=a|b` for each of them, `choice=dir/*` for each file of `shaders/dir`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variant {
    shader: &'static str,
    values: BTreeMap<&'static str, Value>,
}

impl Variant {
    /// `shaders/{shader}.wgsl` with no choice made.
    pub fn new(shader: &'static str) -> Self {
        Self { shader, values: BTreeMap::new() }
    }

    /// Turns the switch `name` on if `on`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Self {
        if on {
            self.values.insert(name, Value::On);
        }
        self
    }

    /// Chooses `word` for `name`.
    pub fn choose(mut self, name: &'static str, word: &'static str) -> Self {
        self.values.insert(name, Value::Word(word));
        self
    }

    /// Sets the number `name`.
    pub fn number(mut self, name: &'static str, number: u32) -> Self {
        self.values.insert(name, Value::Number(number));
        self
    }

    /// The file's name.
    pub fn shader(&self) -> &'static str {
        self.shader
    }

    /// What `name` stands for, if chosen.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// All variants that a line of the list stands for.
    fn parse(line: &'static str) -> Vec<Self> {
        let mut words = line.split_whitespace();
        let mut variants: Vec<_> = words.next().map(Self::new).into_iter().collect();
        for word in words {
            let (name, values) = match word.split_once('=') {
                None => match word.strip_suffix('?') {
                    None => (word, vec![Some(Value::On)]),
                    Some(name) => (name, vec![None, Some(Value::On)]),
                },
                Some((name, list)) => {
                    let value = |v: &'static str| v.parse().map_or(Value::Word(v), Value::Number);
                    let values = match list.strip_suffix('*') {
                        None => list.split('|').map(|v| Some(value(v))).collect(),
                        Some(dir) => super::files(dir).map(|v| Some(value(v))).collect(),
                    };
                    (name, values)
                }
            };
            variants = variants
                .iter()
                .flat_map(|variant| {
                    values.iter().map(move |value| {
                        let mut variant = variant.clone();
                        variant.values.extend(value.clone().map(|v| (name, v)));
                        variant
                    })
                })
                .collect();
        }
        variants
    }

    /// The same with all numbers 0: what the list fixes.
    fn shape(&self) -> Self {
        let mut shape = self.clone();
        for value in shape.values.values_mut() {
            if matches!(value, Value::Number(_)) {
                *value = Value::Number(0);
            }
        }
        shape
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shader)?;
        for (name, value) in &self.values {
            match value {
                Value::On => write!(f, " {name}")?,
                Value::Word(w) => write!(f, " {name}={w}")?,
                Value::Number(n) => write!(f, " {name}={n}")?,
            }
        }
        Ok(())
    }
}

static LISTED: LazyLock<Vec<Variant>> = LazyLock::new(|| {
    include_str!("../../shaders/variants.txt")
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(Variant::parse)
        .collect()
});

static SHAPES: LazyLock<Vec<Variant>> =
    LazyLock::new(|| LISTED.iter().map(Variant::shape).collect());

/// Every variant of `shaders/variants.txt`; numbers are examples.
pub fn listed() -> &'static [Variant] {
    &LISTED
}

pub(super) fn require_listed(variant: &Variant) -> Result<()> {
    if SHAPES.contains(&variant.shape()) {
        return Ok(());
    }
    Err(Error::Shader(format!("`{variant}` is not listed in shaders/variants.txt")))
}
