//! Draws a comparison as SVG.

use std::fmt::Write as _;

use super::Comparison;
use rollout_core::{statistics::Interval, xml::escape};

/// The distance between two rows.
const ROW: f64 = 26.0;
const WIDTH: f64 = 800.0;
/// The position where names end and the scale begins.
const LEFT: f64 = 250.0;
const RIGHT: f64 = WIDTH - 150.0;
/// The maximum length of a name.
const MOST_CHARACTERS: usize = 34;

const STYLE: &str = "\
:root{color-scheme:light dark}\
.back{fill:#fff}.text{fill:#1b1f24}.dim{fill:#5b6570}.grid{stroke:#d9dee3}.zero{stroke:#5b6570}\
.bar{stroke:#0b63ce}.dot{fill:#0b63ce}\
@media(prefers-color-scheme:dark){\
.back{fill:#14181d}.text{fill:#e6e9ed}.dim{fill:#9aa4af}.grid{stroke:#343b44}.zero{stroke:#9aa4af}\
.bar{stroke:#6cb2ff}.dot{fill:#6cb2ff}}\
text{font:13px system-ui,sans-serif}.head{font-weight:600}\
.bar{stroke-width:2.5;stroke-linecap:round}";

/// A row of a panel.
struct Row<'a> {
    name: &'a str,
    value: f64,
    interval: Option<Interval>,
    label: String,
}

/// A scale with rows below it.
struct Panel<'a> {
    title: String,
    rows: Vec<Row<'a>>,
    low: f64,
    high: f64,
    tick: fn(f64) -> String,
}

/// Draws the pass rate of each side, and the differences from the baseline, each with its confidence interval. Text is
/// escaped, the file uses nothing external, and it is readable on light and dark backgrounds.
pub fn svg(comparison: &Comparison) -> String {
    let mut baselines: Vec<&str> = comparison.contrasts.iter().map(|contrast| &*contrast.baseline).collect();
    baselines.dedup();
    let baseline = match baselines[..] {
        [alone] => cut(alone),
        _ => "the same agent of the earlier job".to_owned(),
    };
    let percent = |value: f64| format!("{:.0}%", value * 100.0);
    let points = |value: f64| format!("{:+.0}%", value * 100.0 + 0.0);
    let signed = |value: f64| format!("{:+.2}", value + 0.0);
    let rates = comparison.sides.iter().filter_map(|side| {
        let rate = side.figures.headline.pass_rate?;
        let label = format!("{:.1}%", rate.rate * 100.0);
        Some(Row { name: &side.name, value: rate.rate, interval: Some(rate.interval), label })
    });
    let mut panels = vec![Panel {
        title: format!("Pass rate, {} interval", percent(comparison.confidence)),
        rows: rates.collect(),
        low: 0.0,
        high: 1.0,
        tick: percent,
    }];
    let contrasts = || comparison.contrasts.iter().filter(|contrast| contrast.headline.tasks > 0);
    for (what, rewards) in [("pass rate", false), ("mean reward", true)] {
        let row = |contrast: &'_ super::Contrast| {
            let differences = &contrast.headline;
            let difference = if rewards { differences.mean_reward } else { differences.pass_rate };
            let known = difference.p_holm.or(difference.p);
            let p = known.map(|p| format!(", p {}", probability(p))).unwrap_or_default();
            let value = if rewards {
                signed(difference.mean)
            } else {
                format!("{:+.1}%", difference.mean * 100.0 + 0.0)
            };
            (difference, format!("{value}{p}"))
        };
        let rows: Vec<Row<'_>> = contrasts()
            .map(|contrast| {
                let (difference, label) = row(contrast);
                Row { name: &contrast.other, value: difference.mean, interval: difference.interval, label }
            })
            .collect();
        let reach = |row: &Row<'_>| {
            let interval = row.interval.unwrap_or(Interval { low: row.value, high: row.value });
            interval.low.abs().max(interval.high.abs()).max(row.value.abs())
        };
        let reach = rounded_up(rows.iter().map(reach).fold(0.0, f64::max));
        panels.push(Panel {
            title: format!(
                "Difference of the {what} to {}, paired by task, {} interval",
                baseline,
                percent(comparison.confidence)
            ),
            rows,
            low: -reach,
            high: reach,
            tick: if rewards { signed } else { points },
        });
    }
    draw(&panels)
}

fn draw(panels: &[Panel<'_>]) -> String {
    let mut body = String::new();
    let mut y = 16.0;
    for panel in panels.iter().filter(|panel| !panel.rows.is_empty()) {
        y = panel.draw(&mut body, y);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" \
         role=\"img\" aria-label=\"Comparison\">\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

impl Panel<'_> {
    /// Draws the panel at this position, and returns its end.
    fn draw(&self, body: &mut String, top: f64) -> f64 {
        let x = |value: f64| {
            let share = (value - self.low) / (self.high - self.low);
            LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
        };
        let mut line = |text: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(body, "{text}");
        };
        let title = escape(&self.title);
        line(format_args!("<text class=\"text head\" x=\"16\" y=\"{}\">{title}</text>", top + 14.0));
        let (first, last) = (top + 30.0, top + 30.0 + ROW * self.rows.len() as f64);
        for step in 0..=4 {
            let value = self.low + (self.high - self.low) * f64::from(step) / 4.0;
            let class = if value == 0.0 { "zero" } else { "grid" };
            let (at, tick) = (x(value), if value == 0.0 { "0".to_owned() } else { (self.tick)(value) });
            line(format_args!(
                "<line class=\"{class}\" x1=\"{at:.1}\" y1=\"{first}\" x2=\"{at:.1}\" y2=\"{last}\"/>"
            ));
            line(format_args!(
                "<text class=\"dim\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
                last + 16.0
            ));
        }
        for (number, row) in self.rows.iter().enumerate() {
            let middle = first + ROW * (number as f64 + 0.5);
            let (name, label, at) = (escape(&cut(row.name)), escape(&row.label), x(row.value));
            let text = middle + 4.5;
            line(format_args!(
                "<text class=\"text\" x=\"{}\" y=\"{text}\" text-anchor=\"end\">{name}</text>",
                LEFT - 16.0
            ));
            if let Some(interval) = row.interval {
                let (low, high) = (x(interval.low), x(interval.high));
                line(format_args!(
                    "<line class=\"bar\" x1=\"{low:.1}\" y1=\"{middle}\" x2=\"{high:.1}\" y2=\"{middle}\"/>"
                ));
            }
            line(format_args!("<circle class=\"dot\" cx=\"{at:.1}\" cy=\"{middle}\" r=\"5\"/>"));
            line(format_args!("<text class=\"dim\" x=\"{}\" y=\"{text}\">{label}</text>", RIGHT + 12.0));
        }
        last + 40.0
    }
}

/// Rounds up to a number with one digit, for the ends of a scale.
fn rounded_up(reach: f64) -> f64 {
    if reach <= 0.0 || !reach.is_finite() {
        return 0.1;
    }
    let unit = 10.0_f64.powf(reach.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * unit)
        .find(|end| *end >= reach)
        .unwrap_or(reach)
}

/// Formats a p-value.
fn probability(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

fn cut(name: &str) -> String {
    if name.chars().count() <= MOST_CHARACTERS {
        return name.to_owned();
    }
    let kept: String = name.chars().skip(name.chars().count() + 1 - MOST_CHARACTERS).collect();
    format!("…{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_numbers_that_can_be_read() {
        let ends = [0.0, 0.031, 0.12, 0.21, 0.45, 0.7, 1.0, 13.0].map(rounded_up);
        for (end, expected) in ends.into_iter().zip([0.1, 0.04, 0.2, 0.4, 0.5, 1.0, 1.0, 20.0]) {
            assert!((end - expected).abs() < 1e-12, "{ends:?}");
        }
    }

    #[test]
    fn the_end_of_a_long_name_is_kept() {
        let long = format!("{}/agent", "x".repeat(100));
        assert!(cut(&long).ends_with("x/agent") && cut(&long).chars().count() == MOST_CHARACTERS);
    }
}
