//! `strftime_now` of chat templates: today's date, in UTC (spec/tokenizer.md 5.1).

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The present time by a C `strftime` format, or the directive that we do not know.
pub(crate) fn now(format: &str) -> Result<String, char> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    strftime(seconds, format)
}

/// Formats `seconds` since 1970 in UTC.
fn strftime(seconds: u64, format: &str) -> Result<String, char> {
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let (year, month, day, day_of_year) = civil(days);
    let weekday = DAYS[(days as usize + 4) % 7];
    let month_name = MONTHS[month as usize - 1];
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next().unwrap_or('%');
        // `%-d` is `%d` without padding.
        let unpadded = directive == '-';
        let directive = if unpadded { chars.next().unwrap_or('%') } else { directive };
        let mut number = |value: u64, width: usize| {
            let width = if unpadded { 0 } else { width };
            _ = write!(out, "{value:0width$}");
        };
        match directive {
            'Y' => number(year, 4),
            'y' => number(year % 100, 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'e' => _ = write!(out, "{day:2}"),
            'j' => number(day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'A' => out.push_str(weekday),
            'a' => out.push_str(&weekday[..3]),
            'B' => out.push_str(month_name),
            'b' | 'h' => out.push_str(&month_name[..3]),
            'F' => _ = write!(out, "{year:04}-{month:02}-{day:02}"),
            'T' => _ = write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            '%' => out.push('%'),
            unknown => return Err(unknown),
        }
    }
    Ok(out)
}

/// Year, month, day of the month and day of the year, all but the year from 1, of a day since 1970.
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    // Whole Gregorian cycles first, so that the loop over years is short.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut left = days;
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let day_of_year = left + 1;
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_known_times() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_825_600, "%d %b %Y, %a", "29 Feb 2000, Tue"),
            (1_735_689_599, "%F %T %p %I %y %j", "2024-12-31 23:59:59 PM 11 24 366"),
            (1_740_787_200, "%-d %B %e|%-m|%%", "1 March  1|3|%"),
            (4_107_542_400, "%d %m %Y", "01 03 2100"),
            (12_622_780_800, "%F", "2370-01-01"),
        ];
        for (seconds, format, expected) in cases {
            assert_eq!(strftime(seconds, format).as_deref(), Ok(expected));
        }
        assert_eq!(strftime(0, "%Q"), Err('Q'));
        assert_eq!(strftime(u64::MAX, "%S").map(|text| text.len()), Ok(2));
    }
}
