//! Speed by depth as a picture, legible on light and dark pages.

use super::{Kind, Row, Setting, Subject, stored::kv_host};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
/// Of a plot, its legend not counted.
const HEIGHT: f64 = 310.0;
/// Space around a plot: left, right, top, bottom.
const MARGIN: [f64; 4] = [64.0, 24.0, 52.0, 40.0];
/// Of the legend, below.
const LINE: f64 = 18.0;

/// Distinct on white and black, and to those who confuse red and green.
const COLOURS: [&str; 6] = ["#3b82c4", "#d9822b", "#2a9d8f", "#b5529b", "#8a8f00", "#7a7f87"];

const STYLE: &str = "svg{font:13px sans-serif;fill:#1c1e21;background:#fff}\
.axis{stroke:#80868b}.grid{stroke:#dadce0}.line{fill:none;stroke-width:2}.note{font-size:11px}.spread{opacity:.5}\
@media(prefers-color-scheme:dark){svg{fill:#e8eaed;background:#16181b}.grid{stroke:#3a3d41}}";

/// One line: points of depth, speed and its deviation.
struct Series {
    name: String,
    points: Vec<(f64, f64, f64)>,
}

/// A picture of `rows`: a plot of generation, one of prompts and one of both, where there are any.
pub fn svg(rows: &[(&Subject, &Row)]) -> String {
    let title = |row: &Row| match row.test.kind {
        Kind::Generate(_) => "Generation",
        Kind::Prompt(_) => "Prompt",
        Kind::Both(..) => "Prompt and generation",
    };
    let of = |wanted| -> (_, Vec<_>) {
        (wanted, rows.iter().copied().filter(|(_, row)| title(row) == wanted).collect())
    };
    let plots = ["Generation", "Prompt", "Prompt and generation"].map(of);
    let plots: Vec<_> = plots.into_iter().filter(|(_, rows)| !rows.is_empty()).collect();
    let mut drawn = String::new();
    let mut height = 0.0;
    for (title, rows) in plots {
        let Lines { common, series } = lines(&rows);
        let caption: Vec<_> = [common].into_iter().chain(doubts(&rows)).collect();
        _ = writeln!(drawn, "<g transform=\"translate(0 {height})\">");
        plot(&mut drawn, title, &caption.join("; "), &series);
        drawn.push_str("</g>\n");
        height += HEIGHT + LINE * series.len() as f64;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" \
         aria-label=\"Tokens a second by depth\"><style>{STYLE}</style>\n{drawn}</svg>\n",
        height.max(LINE)
    )
}

/// Lines of a plot, and what all of them have in common.
struct Lines {
    common: String,
    series: Vec<Series>,
}

/// Rows that differ in depth only share a line, which is named by what others have not. Invalid rows
/// have no point.
fn lines(rows: &[(&Subject, &Row)]) -> Lines {
    let named: Vec<_> = rows.iter().map(|(subject, row)| (parts(subject, row), *row)).collect();
    let differs = |i: usize| named.iter().any(|(parts, _)| parts[i] != named[0].0[i]);
    let (differing, common): (Vec<_>, Vec<_>) = (0..PARTS).partition(|i| differs(*i));
    let chosen = |parts: &[String; PARTS], which: &[usize]| {
        which.iter().map(|i| parts[*i].as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut series: Vec<Series> = Vec::new();
    for (parts, row) in &named {
        let Some(speed) = row.speed() else { continue };
        let name = chosen(parts, &differing);
        let point = (f64::from(row.test.depth), speed.mean, speed.deviation);
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    series.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let common = named.first().map_or(String::new(), |(parts, _)| chosen(parts, &common));
    Lines { common, series }
}

/// How many of `rows` have no point, and how many of those that have are not to be trusted.
fn doubts(rows: &[(&Subject, &Row)]) -> Option<String> {
    let missing = rows.iter().filter(|(_, row)| row.speed().is_none()).count();
    let disturbed = |row: &Row| row.speed().is_some() && row.trial.load.disturbance().is_some();
    let disturbed = rows.iter().filter(|(_, row)| disturbed(row)).count();
    let missing = (missing > 0).then(|| format!("{missing} left out as invalid"));
    let disturbed = (disturbed > 0).then(|| format!("{disturbed} disturbed"));
    let doubts: Vec<_> = missing.into_iter().chain(disturbed).collect();
    (!doubts.is_empty()).then(|| format!("of {} rows {}", rows.len(), doubts.join(", ")))
}

const PARTS: usize = 8;

/// What a row is of, its depth apart.
fn parts(subject: &Subject, row: &Row) -> [String; PARTS] {
    let Setting { batch, ubatch, cache_k, cache_v, kv_host: host, experts_host } = &row.setting;
    [
        subject.model_type(),
        subject.file.clone(),
        row.test.kind.to_string(),
        format!("b{batch}"),
        format!("ub{ubatch}"),
        format!("{cache_k}/{cache_v}"),
        format!("kv {}", kv_host(*host)),
        format!("ncmoe {}", experts_host.min(&subject.layers)),
    ]
}

fn plot(out: &mut String, title: &str, caption: &str, series: &[Series]) {
    let [left, right, top, bottom] = MARGIN;
    let (x1, y1) = (WIDTH - right, HEIGHT - bottom);
    let points = || series.iter().flat_map(|series| series.points.iter());
    let deepest = points().map(|p| p.0).fold(0.0, f64::max).max(1.0);
    let fastest = points().map(|p| p.1 + p.2).fold(0.0, f64::max);
    let step = step(fastest);
    let most = (fastest / step).ceil().max(1.0) * step;
    let x = |depth: f64| left + depth / deepest * (x1 - left);
    let y = |speed: f64| y1 - speed.max(0.0) / most * (y1 - top);
    _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"20\">{title}, tokens/s by depth</text>\
         <text class=\"note\" x=\"{left}\" y=\"37\">{}</text>",
        escaped(caption)
    );
    for i in 0..=(most / step).round() as u32 {
        let value = f64::from(i) * step;
        let at = y(value);
        _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{x1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            left - 8.0,
            at + 4.0
        );
    }
    let mut depths: Vec<f64> = points().map(|p| p.0).collect();
    depths.sort_by(f64::total_cmp);
    depths.dedup();
    let mut free = f64::MIN;
    for depth in depths {
        let at = x(depth);
        let tick = y1 + 5.0;
        _ = write!(out, "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{y1}\" x2=\"{at:.1}\" ");
        _ = writeln!(out, "y2=\"{tick}\"/>");
        // Labels that would cover one another are left out.
        if at >= free {
            free = at + 44.0;
            let label = short(depth);
            _ = write!(out, "<text x=\"{at:.1}\" y=\"{}\" ", y1 + 20.0);
            _ = writeln!(out, "text-anchor=\"middle\">{label}</text>");
        }
    }
    _ = writeln!(out, "<line class=\"axis\" x1=\"{left}\" y1=\"{y1}\" x2=\"{x1}\" y2=\"{y1}\"/>");
    for (i, Series { name, points }) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: Vec<_> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let path = path.join(" ");
        _ = writeln!(out, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{path}\"/>");
        for (depth, speed, deviation) in points {
            let (cx, low, high) = (x(*depth), y(speed - deviation), y(speed + deviation));
            _ = writeln!(
                out,
                "<line class=\"spread\" stroke=\"{colour}\" x1=\"{cx:.1}\" y1=\"{low:.1}\" x2=\"{cx:.1}\" \
                 y2=\"{high:.1}\"/><circle fill=\"{colour}\" cx=\"{cx:.1}\" cy=\"{:.1}\" r=\"3.5\">\
                 <title>{depth}: {speed:.2} ± {deviation:.2}</title></circle>",
                y(*speed)
            );
        }
        // A single line needs no name.
        if name.is_empty() {
            continue;
        }
        let at = HEIGHT + LINE * i as f64;
        _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text class=\"note\" x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            at - 9.0,
            left + 16.0,
            escaped(name)
        );
    }
}

/// A round distance between grid lines, four to ten of them up to `most`.
fn step(most: f64) -> f64 {
    let unit = 10_f64.powf((most.max(1e-3) / 5.0).log10().floor());
    let fit = |m: &f64| most / (m * unit) <= 7.0;
    [1.0, 2.0, 5.0, 10.0].into_iter().find(fit).unwrap_or(10.0) * unit
}

/// A depth as people say it.
fn short(depth: f64) -> String {
    match depth as u64 {
        n if n >= 1024 && n.is_multiple_of(1024) => format!("{}K", n / 1024),
        n => n.to_string(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Test, row::tests::*};

    #[test]
    fn a_line_for_each_setting_and_no_point_for_invalid_rows() {
        let at = |kind, depth, ms| row(Test { kind, depth }, setting(512), &[ms, ms]);
        let mut rows = [
            at(Kind::Generate(9), 4096, 200),
            at(Kind::Generate(9), 0, 100),
            at(Kind::Prompt(9), 0, 0),
            at(Kind::Generate(9), 32768, 900),
        ];
        rows[3].trial.fault = Some("wrong".into());
        let subject = Subject { model: "a<b & c".into(), ..Subject::default() };
        let rows: Vec<_> = rows.iter().map(|row| (&subject, row)).collect();
        let text = svg(&rows);
        assert_eq!(text.matches("<polyline").count(), 1);
        assert_eq!(text.matches("<rect").count(), 0, "one line needs no name");
        assert_eq!(text.matches("<circle").count(), 2);
        assert!(text.contains("a&lt;b &amp; c") && text.contains(">4K<"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(!svg(&[]).contains("NaN"));
        assert!(text.contains("of 3 rows 1 left out as invalid<"), "{text}");
        assert!(text.contains("of 1 rows 1 left out as invalid<"), "{text}");
    }

    #[test]
    fn disturbed_rows_are_drawn_and_counted() {
        let mut row = row(Test { kind: Kind::Generate(9), depth: 0 }, setting(512), &[100]);
        let subject = Subject::default();
        assert!(!svg(&[(&subject, &row)]).contains("disturbed"));
        row.trial.load.other_cpu = Some(0.9);
        let text = svg(&[(&subject, &row), (&subject, &row)]);
        assert!(text.contains("of 2 rows 2 disturbed"), "{text}");
    }

    #[test]
    fn lines_are_named_by_what_they_differ_in() {
        let at = |kind, ubatch| row(Test { kind, depth: 0 }, setting(ubatch), &[1000]);
        let rows = [at(Kind::Prompt(8), 64), at(Kind::Prompt(8), 512), at(Kind::Prompt(9), 64)];
        let subject = Subject { model: "m".into(), file: "f".into(), ..Subject::default() };
        let Lines { common, series } = lines(&rows.each_ref().map(|row| (&subject, row)));
        assert_eq!(common, "m, f, b2048, f16/f16, kv auto, ncmoe 0");
        let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["pp8, ub64", "pp8, ub512", "pp9, ub64"]);
    }

    /// Known fault: two quantisations of a model shared a line.
    #[test]
    fn every_file_has_a_line() {
        let row = row(Test { kind: Kind::Generate(8), depth: 0 }, setting(512), &[1000]);
        let subject = |weights: &str, file: &str| Subject {
            model: "m".into(),
            weights: weights.into(),
            file: file.into(),
            ..Subject::default()
        };
        let subjects = [subject("Q8_0", "a"), subject("Q4_0", "b"), subject("Q4_0", "c")];
        let Lines { series, .. } = lines(&subjects.each_ref().map(|subject| (subject, &row)));
        let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["m Q8_0, a", "m Q4_0, b", "m Q4_0, c"]);
    }

    #[test]
    fn grid_lines_are_round_and_few() {
        for most in [0.0, 0.07, 1.0, 3.2, 49.0, 51.0, 700.0, 12_345.0] {
            let lines = most / step(most);
            assert!(lines <= 7.0, "{most}: {}", step(most));
        }
        assert_eq!(step(50.0), 10.0);
    }
}
