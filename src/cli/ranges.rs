//! llama-bench's lists of numbers: `512`, `128,512`, `128-512+128`, `128-1024*2`.

use std::str::FromStr;

/// Numbers in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(pub(super) Vec<u32>);

/// More than anyone means.
const MOST: usize = 1000;

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for part in text.split(',') {
            all.extend(range(part).ok_or_else(|| {
                format!("{part:?}: expected a number, or a range like 128-512+128 or 128-1024*2")
            })?);
            if all.len() > MOST {
                return Err(format!("more than {MOST} numbers"));
            }
        }
        Ok(Self(all))
    }
}

/// A number, or `first-last` with `+step` or `*factor`, which is `+1` if it is left out.
fn range(text: &str) -> Option<Vec<u32>> {
    let Some((first, rest)) = text.split_once('-') else {
        return Some(vec![text.parse().ok()?]);
    };
    let sign = rest.find(['+', '*']);
    let (last, step) = rest.split_at(sign.unwrap_or(rest.len()));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    let factor = step.starts_with('*');
    let step: u32 = if step.is_empty() { 1 } else { step[1..].parse().ok()? };
    // What does not grow has no end.
    let grows = if factor { step > 1 && first > 0 } else { step > 0 };
    if !grows || first > last {
        return None;
    }
    let next = |n: &u32| if factor { n.checked_mul(step) } else { n.checked_add(step) };
    let all = std::iter::successors(Some(first), next).take_while(|n| *n <= last);
    Some(all.take(MOST + 1).collect())
}

#[cfg(test)]
mod tests {
    use super::Numbers;

    #[test]
    fn lists_and_ranges() {
        let numbers = |text: &str| text.parse::<Numbers>().map(|n| n.0);
        assert_eq!(numbers("0"), Ok(vec![0]));
        assert_eq!(numbers("0,4096"), Ok(vec![0, 4096]));
        assert_eq!(numbers("1-3,9"), Ok(vec![1, 2, 3, 9]));
        assert_eq!(numbers("128-512+128"), Ok(vec![128, 256, 384, 512]));
        assert_eq!(numbers("1-9*2"), Ok(vec![1, 2, 4, 8]));
        for wrong in ["", "x", "3-1", "1-9+0", "0-9*2", "1-9*1", "1,,2", "-1", "1-4294967295"] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
    }
}
