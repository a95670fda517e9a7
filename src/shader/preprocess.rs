//! The preprocessor. Directives stand alone on a line:
//!
//! - `#import NAME`: the text of `shaders/NAME.wgsl`, once a variant; `$choice` inside NAME is
//!   replaced (`#import quant/$format`);
//! - `#if name`, `#if !name`, `#if name=word`, `#if name=word|word`, `#else`, `#endif`, nested as
//!   wanted.
//!
//! `$NAME` elsewhere becomes the number or word chosen for NAME.

use super::variant::{Value, Variant};
use crate::{Error, Result};
use std::collections::HashSet;

type Sources<'a> = &'a dyn Fn(&str) -> Option<&'static str>;

pub(super) fn expand(variant: &Variant, sources: Sources<'_>) -> Result<String> {
    let mut expander = Expander { variant, sources, seen: HashSet::new(), out: String::new() };
    expander.file(variant.shader())?;
    Ok(expander.out)
}

struct Expander<'a> {
    variant: &'a Variant,
    sources: Sources<'a>,
    seen: HashSet<String>,
    out: String,
}

impl Expander<'_> {
    fn file(&mut self, name: &str) -> Result<()> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let text = (self.sources)(name)
            .ok_or_else(|| Error::Shader(format!("there is no shaders/{name}.wgsl")))?;
        // One entry a nested `#if`: whether its current branch is taken.
        let mut taken: Vec<bool> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let fault =
                |what: &str| Error::Shader(format!("shaders/{name}.wgsl line {}: {what}", i + 1));
            let live = taken.iter().all(|t| *t);
            let directive = line.trim_start();
            if let Some(condition) = directive.strip_prefix("#if ") {
                taken.push(self.holds(condition.trim()));
            } else if directive.starts_with("#else") {
                let branch = taken.last_mut().ok_or_else(|| fault("#else without #if"))?;
                *branch = !*branch;
            } else if directive.starts_with("#endif") {
                taken.pop().ok_or_else(|| fault("#endif without #if"))?;
            } else if !live {
            } else if let Some(import) = directive.strip_prefix("#import ") {
                let import = self
                    .substitute(import.trim())
                    .map_err(|n| fault(&format!("`{}` chooses no ${n}", self.variant)))?;
                self.file(&import)?;
            } else if directive.starts_with('#') {
                return Err(fault("unknown directive"));
            } else {
                let line = self
                    .substitute(line)
                    .map_err(|n| fault(&format!("`{}` chooses no ${n}", self.variant)))?;
                self.out.push_str(&line);
                self.out.push('\n');
            }
        }
        if !taken.is_empty() {
            return Err(Error::Shader(format!("shaders/{name}.wgsl: #if without #endif")));
        }
        Ok(())
    }

    fn holds(&self, condition: &str) -> bool {
        if let Some(name) = condition.strip_prefix('!') {
            return !self.holds(name);
        }
        match condition.split_once('=') {
            Some((name, words)) => match self.variant.get(name) {
                Some(Value::Word(chosen)) => words.split('|').any(|word| word == *chosen),
                Some(Value::Number(n)) => words.split('|').any(|word| word == n.to_string()),
                _ => false,
            },
            None => self.variant.get(condition).is_some(),
        }
    }

    /// Replaces every `$NAME`; a name with nothing chosen is the error.
    fn substitute(&self, line: &str) -> std::result::Result<String, String> {
        let mut parts = line.split('$');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end =
                part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            match self.variant.get(name) {
                Some(Value::Word(w)) => out.push_str(w),
                Some(Value::Number(n)) => out.push_str(&n.to_string()),
                Some(Value::On) | None => return Err(name.to_owned()),
            }
            out.push_str(rest);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(name: &str) -> Option<&'static str> {
        Some(match name {
            "main" => {
                "#import part/$kind\n#import part/a\n#if fast\nfast\n#if wide=2|4\nwide\n#endif\n#else\nslow\n#endif\nn = $N;"
            }
            "part/a" => "A",
            "open" => "#if x\n",
            "stray" => "#endif\n",
            "odd" => "#define x\n",
            _ => return None,
        })
    }

    #[test]
    fn imports_once_and_follows_branches() {
        let v = Variant::new("main").choose("kind", "a").number("N", 3);
        assert_eq!(expand(&v, &sources).unwrap(), "A\nslow\nn = 3;\n");
        let v = v.flag("fast", true).number("wide", 4);
        assert_eq!(expand(&v, &sources).unwrap(), "A\nfast\nwide\nn = 3;\n");
    }

    #[test]
    fn faults_are_named() {
        let text = |v: Variant| expand(&v, &sources).unwrap_err().to_string();
        assert!(text(Variant::new("main")).contains("$kind"));
        assert!(text(Variant::new("main").choose("kind", "b")).contains("part/b"));
        assert!(text(Variant::new("open")).contains("#endif"));
        assert!(text(Variant::new("stray")).contains("line 1"));
        assert!(text(Variant::new("odd")).contains("unknown directive"));
    }
}
