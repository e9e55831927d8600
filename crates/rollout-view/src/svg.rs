//! Charts. Colours come from the style sheet, so they follow its light and dark themes.

use rollout_core::{
    display::fine_span,
    statistics::{Interval, Spread},
    xml::escape,
};

use crate::html::Html;

const WIDTH: f64 = 480.0;
const ROW: f64 = 30.0;
/// Where names end and the scale begins.
const LEFT: f64 = 144.0;
/// Where the scale ends and the values begin.
const RIGHT: f64 = WIDTH - 84.0;
const TOP: f64 = 6.0;
const AXIS: f64 = 24.0;
const MAX_NAME_CHARS: usize = 14;

/// A row of a chart.
pub(crate) struct ChartRow<'a> {
    pub(crate) name: &'a str,
    pub(crate) marks: Marks,
    /// The text at the end of the row.
    pub(crate) label: String,
}

/// What is drawn in a row.
pub(crate) enum Marks {
    /// A value with its interval.
    Estimate(f64, Option<Interval>),
    /// A distribution: the middle half, the median, and the range up to the 99th percentile.
    Spread(Spread),
}

impl Marks {
    fn high(&self) -> f64 {
        match self {
            Self::Estimate(value, interval) => interval.map_or(*value, |interval| interval.high),
            Self::Spread(spread) => spread.p99,
        }
    }
}

/// A chart with one row for each name. The scale begins at 0 and ends at `high`, or at the largest value.
pub(crate) fn chart(label: &str, rows: &[ChartRow<'_>], high: Option<f64>, tick: fn(f64) -> String) -> Html {
    let largest = rows.iter().map(|row| row.marks.high()).fold(0.0, f64::max);
    let high = high.unwrap_or_else(|| rounded_up(largest));
    let x = |value: f64| LEFT + (value / high).clamp(0.0, 1.0) * (RIGHT - LEFT);
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + AXIS;
    let mut html = Html::default();
    html.push_format(format_args!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(label)
    ));
    for step in 0..=4 {
        let value = high * f64::from(step) / 4.0;
        let at = x(value);
        html.push_format(format_args!(
            "<line class=\"rule\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            escape(&tick(value))
        ));
    }
    for (number, row) in rows.iter().enumerate() {
        let middle = TOP + ROW * (number as f64 + 0.5);
        html.push_format(format_args!(
            "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\"><title>{}</title>{}</text>",
            LEFT - 12.0,
            middle + 4.5,
            escape(row.name),
            Html::text(&rollout_core::text::cut(row.name, MAX_NAME_CHARS)),
        ));
        marks(&row.marks, middle, &x, &mut html);
        html.push_format(format_args!(
            "<text class=\"value\" x=\"{}\" y=\"{}\">{}</text>",
            RIGHT + 12.0,
            middle + 4.5,
            escape(&row.label)
        ));
    }
    html.push_markup("</svg>");
    html
}

fn marks(marks: &Marks, middle: f64, x: &impl Fn(f64) -> f64, html: &mut Html) {
    let mut line = |class: &str, from: f64, to: f64| {
        html.push_format(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{middle}\" x2=\"{:.1}\" y2=\"{middle}\"/>",
            x(from),
            x(to)
        ));
    };
    match marks {
        Marks::Estimate(value, interval) => {
            line("bar", 0.0, *value);
            if let Some(interval) = interval {
                line("interval", interval.low, interval.high);
            }
            html.push_format(format_args!(
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle}\" r=\"4.5\"/>",
                x(*value)
            ));
        }
        Marks::Spread(spread) => {
            line("whisker", spread.min, spread.p99);
            line("box", spread.p25, spread.p75.max(spread.p25));
            html.push_format(format_args!(
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle}\" r=\"4.5\"/>",
                x(spread.p50)
            ));
        }
    }
}

/// The number of trials in each of several ranges of rewards, as columns.
pub(crate) fn histogram(label: &str, values: &[f64], tick: fn(f64) -> String) -> Html {
    const BINS: usize = 12;
    const HEIGHT: f64 = 112.0;
    /// The space above the highest column, for its count.
    const COUNT: f64 = 20.0;
    let (low, high) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    if !(high - low).is_finite() {
        return Html::default();
    }
    let range = if high > low { high - low } else { 1.0 };
    let mut bins = [0_u64; BINS];
    for value in values {
        let bin = ((value - low) / range * BINS as f64) as usize;
        bins[bin.min(BINS - 1)] += 1;
    }
    let most = bins.iter().copied().max().unwrap_or(1).max(1) as f64;
    let step = (WIDTH - 20.0) / BINS as f64;
    let mut html = Html::default();
    html.push_format(format_args!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">",
        HEIGHT + AXIS,
        escape(label)
    ));
    for (number, count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (*count as f64 / most * (HEIGHT - COUNT)).max(2.0);
        let from = low + range * number as f64 / BINS as f64;
        html.push_format(format_args!(
            "<rect class=\"column\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" rx=\"2\">\
             <title>{count} at {} to {}</title></rect>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            10.0 + step * number as f64 + 1.0,
            HEIGHT - height,
            step - 2.0,
            escape(&tick(from)),
            escape(&tick(from + range / BINS as f64)),
            10.0 + step * (number as f64 + 0.5),
            HEIGHT - height - 5.0,
            short_count(*count),
        ));
    }
    for (at, value, anchor) in
        [(10.0, low, "start"), (WIDTH / 2.0, low + range / 2.0, "middle"), (WIDTH - 10.0, low + range, "end")]
    {
        html.push_format(format_args!(
            "<text class=\"tick\" x=\"{at}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT + 17.0,
            escape(&tick(value))
        ));
    }
    html.push_markup("</svg>");
    html
}

/// A number that fits above a column: `9999`, `12k`.
fn short_count(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { format!("{}k", count / 1000) }
}

/// A phase of a trial, in seconds since its start.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// The phases of a trial on one scale.
pub(crate) fn timeline(phases: &[Phase], total: f64) -> Html {
    let total = phases.iter().map(|phase| phase.end).fold(total, f64::max).max(1e-6);
    let x = |seconds: f64| 104.0 + seconds / total * (WIDTH - 172.0);
    let mut html = Html::default();
    let height = 24.0 * phases.len() as f64 + 4.0;
    html.push_format(format_args!(
        "<svg class=\"chart timeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Phases\">"
    ));
    for (number, phase) in phases.iter().enumerate() {
        let top = 24.0 * number as f64 + 4.0;
        let (start, end) = (x(phase.start), x(phase.end));
        html.push_format(format_args!(
            "<text class=\"name\" x=\"96\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect class=\"phase {}\" x=\"{start:.1}\" y=\"{}\" width=\"{:.1}\" height=\"14\" rx=\"3\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{}\">{}</text>",
            top + 12.0,
            phase.name,
            phase.name,
            top + 1.0,
            (end - start).max(2.0),
            end.max(start + 2.0) + 8.0,
            top + 12.0,
            fine_span(phase.end - phase.start),
        ));
    }
    html.push_markup("</svg>");
    html
}

/// Rounds up to a number with one digit, for the end of a scale.
fn rounded_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = 10.0_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0]
        .into_iter()
        .map(|digit| digit * unit)
        .find(|end| *end >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_text_in_charts() {
        let rows = [ChartRow {
            name: "<script>\"",
            marks: Marks::Estimate(0.5, Some(Interval { low: 0.2, high: 0.8 })),
            label: "50%".to_owned(),
        }];
        let drawn = chart("rates", &rows, Some(1.0), |value| format!("{value}")).to_string();
        assert!(drawn.contains("&lt;script&gt;&quot;") && !drawn.contains("<script>"));
    }

    #[test]
    fn any_values_can_be_drawn() {
        for values in [&[][..], &[1.0], &[0.0, 0.0], &[f64::MAX, f64::MIN], &[-1.0, 0.5]] {
            let drawn = histogram("rewards", values, |value| format!("{value}")).to_string();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf\""), "{values:?}: {drawn}");
        }
        assert!(!timeline(&[], 0.0).to_string().contains("NaN"));
    }
}
